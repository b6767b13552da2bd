"""A picture below a widget follows its edits at a distance."""

import time

from IPython.display import DisplayHandle

from mimokit_widgets._widget import SECONDS_AFTER_THE_LAST_EDIT, SavedPicture


def test_a_picture_that_takes_long_to_draw_waits_longer_for_edits_to_pause() -> None:
    def long() -> tuple[str, str]:
        begun = time.thread_time()
        while time.thread_time() - begun < 0.3:
            pass
        return "", ""

    saved = SavedPicture(long)
    saved._handles = [DisplayHandle()]
    assert saved._timer.interval == SECONDS_AFTER_THE_LAST_EDIT
    saved.draw_now()
    saved.follow()
    saved._timer.cancel()
    assert saved._timer.interval >= 4 * 0.3
