"""Errors between ranks."""


class RanksLostError(BaseException):
    """The ranks can no longer compute together; the message names the host and says why.

    Not an Exception: no step and no request can be continued after it, so nothing may recover from it but the
    end of the engine.
    """
