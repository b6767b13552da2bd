"""Rules of infrequent communication between nodes, or between replicas of a layout; `Trainer`.

- `nodes/`: the rules in plain torch, as a node executes them;
- `exchanges/`: what they exchange and when, planned from a seed;
- `network/`: how long that takes on links;
- `fits/`: a torch model under a rule, each node an engine;
- `replicas/`: replicas of a layout, which a config has in its section `strategy`.
"""
