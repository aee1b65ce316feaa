"""`dlc`, and `python -m dlc`: the command line."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line, and exit with its code."""
    # Nothing is begun while the command line is imported, so that Ctrl-C may end the program there
    # and then; raised in an import, it would be a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dlc.cli import main as run

    run()


if __name__ == "__main__":
    main()
