"""The base of the errors that a program which uses Reprise can get."""


class RepriseError(Exception):
    """Reprise refuses something, or failed at it; the message says why, and what helps.

    RepriseError
    |- SettingsError       a setting has a wrong value
    |- ConvertError        a model cannot be converted before it is served
    |- ModelError          a model cannot be loaded
    `- ApiError            a request is refused, or failed; its kinds are in reprise/server/errors.py
    """
