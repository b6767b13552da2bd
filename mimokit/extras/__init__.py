"""Rooms next to the core. The core imports none of them, and works where any of them is deleted.

A room enters the core at declared points only:

- its public names, in the `if TYPE_CHECKING:` block of the core's face that offers them
  (`mimokit/lazy.py`): `from mimokit.extras.foreign_loops.recorder import watch as watch`; charts
  likewise, in `mimokit/charts/__init__.py`;
- its commands: every public function of its `commands.py` (`mimokit/cli/command_group.py`);
- what the core asks of it by name, as a section of a config or an update: `import_extra` in
  `mimokit/extra_rooms.py`.

A room imports rooms of the core, their files and folders, but no file inside a folder of a room;
what it needs of one is a public name of the folder. No room here imports another one.
"""
