"""Rooms beside the core. The core imports none of them, and works where any of them is deleted.

`mimokit/extra_rooms.py` lists them with their files. One that needs what is inside a folder of the
core has its files there; all others lie here. A room enters the core at declared points only:

- its public names, charts, widgets and commands in `mimokit.cli`, in the `if TYPE_CHECKING:` block
  of the face that offers them (`mimokit/lazy.py`):
  `from mimokit.extras.foreign_loops.recorder import watch as watch`;
- its other commands: every public function of its `commands.py` (`mimokit/cli/command_group.py`);
- what the core asks of it by name, as a section of a config or an update: `import_extra` in
  `mimokit/extra_rooms.py`.

A room in this folder imports rooms of the core, their files and folders, but no file inside a
folder of a room; what it needs of one is a public name of the folder. No room imports another one.
"""
