"""The shipped configs of large models; those of digits are tested as files of `configs/`."""

from mimokit.config import preset_names

LARGE_PRESETS = tuple(name for name in preset_names() if not name.startswith("digits_"))
