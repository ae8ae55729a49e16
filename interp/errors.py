"""The one exception that means "the input is at fault, not the program"."""


class InputError(ValueError):
    """Bad input: one line that names the offending value and what would be accepted.

    The commands print it without a traceback and exit with `status`; every other exception is a
    fault of the program and keeps its traceback.
    """

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(" ".join(message.split()))
        self.status = status
