"""Decide whether a request is decoded in windows, and how."""

from reprise.config.settings import Settings
from reprise.engine.interface.models import ModelInfo
from reprise.engine.interface.request import WindowSettings
from reprise.server.errors import bad_field
from reprise.server.requests.window_fields import WindowFields


def choose_window(body: WindowFields, info: ModelInfo, settings: Settings) -> WindowSettings | None:
    """Return the window settings of a request, or None if it is not decoded in windows.

    Raises BadRequestError, naming the field, if the model or the settings do not allow one of its values.
    """
    given = [name for name in WindowFields.model_fields if getattr(body, name) is not None]
    decoding = body.wedlm_decoding or settings.wedlm_decoding
    if given and info.mask_token_id is None:
        phrase = f"is for WeDLM models, and this server's model is a {info.architecture}; leave it out"
        raise bad_field(given[0], phrase, "unsupported_parameter")
    if decoding == "off":
        if others := [name for name in given if name != "wedlm_decoding"]:
            raise bad_field(others[0], "is allowed only with wedlm_decoding: streaming")
        return None
    if not info.can_decode_windows or info.mask_token_id is None:
        raise bad_field("wedlm_decoding", "is 'streaming', which this model's caches do not support")
    if settings.exact:
        raise bad_field("wedlm_decoding", "is 'streaming', but this server's answers are exact (--exact)")
    size, most = body.wedlm_window_size or settings.wedlm_window_size, settings.wedlm_window_size
    if size > most:
        raise bad_field("wedlm_window_size", f"is {size}; at most {most} is allowed (--wedlm-window-size)")
    threshold, factor = body.wedlm_entropy_threshold, body.wedlm_pos_penalty_factor
    if threshold is None:
        threshold = "none" if settings.wedlm_entropy_threshold is None else settings.wedlm_entropy_threshold
    return WindowSettings(
        info.mask_token_id,
        size,
        None if threshold == "none" else threshold,
        settings.wedlm_pos_penalty_factor if factor is None else factor,
        settings.wedlm_anchor if body.wedlm_anchor is None else body.wedlm_anchor,
    )
