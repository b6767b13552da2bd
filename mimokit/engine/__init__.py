"""What runs inside a rank: grids, models, data, bridges, schedules, monitor.

Importing the package alone stays light; torch and Megatron-Core come with the submodules.
"""
