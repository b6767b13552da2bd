"""A network that is cut off, and a list of every request that wanted to leave the machine."""

from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, Page

HERE = {"127.0.0.1", "localhost", "::1"}
CUT_OFF = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost"
"""Chromium's option that lets no name and no address but this machine's be found."""
NO_REQUEST = {"data", "blob", "about", "file", "chrome"}


def leaves_the_machine(address: str) -> bool:
    """Say whether a browser would ask another machine for an address."""
    parts = urlsplit(address)
    return parts.scheme not in NO_REQUEST and parts.hostname not in HERE


class NetworkGuard:
    """Listens to the requests and sockets of pages.

    Attributes:
        requests: the addresses that were not on this machine, in order.
    """

    def __init__(self) -> None:
        self.requests: list[str] = []

    def watch(self, context: BrowserContext) -> None:
        context.on("request", lambda request: self._note(request.url))
        context.on("page", self._watch_sockets)

    def _watch_sockets(self, page: Page) -> None:
        page.on("websocket", lambda socket: self._note(socket.url))

    def _note(self, address: str) -> None:
        if leaves_the_machine(address):
            self.requests.append(address)
