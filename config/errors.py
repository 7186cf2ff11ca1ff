"""The base class of Reprise's errors for programs that use it."""


class RepriseError(Exception):
    """Reprise refused or failed; the message says why, and what helps.

    RepriseError
    |- SettingsError       a setting has a wrong value
    |- ConvertError        a model cannot be converted before it is served
    |- ModelError          a model cannot be loaded
    `- ApiError            a request is refused, or failed; its kinds are in reprise/server/errors.py
    """
