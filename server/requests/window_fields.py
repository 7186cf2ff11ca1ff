"""The fields that control windowed decoding, which only WeDLM models have."""

from typing import Annotated, Literal

from pydantic import Field

from reprise.server.validation.fields import Count, RequestModel

Threshold = Annotated[float, Field(ge=0)] | Literal["none"]


class WindowFields(RequestModel):
    """How a WeDLM model decodes this request. Other models refuse these fields."""

    wedlm_decoding: Literal["off", "streaming"] | None = Field(
        None,
        description="WeDLM models only. streaming: fill in several tokens at once; the answer may differ "
        "from that of plain decoding. null: --wedlm-decoding. Not in OpenAI's API.",
    )
    wedlm_window_size: Count | None = Field(
        None,
        description="With wedlm_decoding: streaming, the tokens to look ahead, at most --wedlm-window-size. "
        "null: --wedlm-window-size. Not in OpenAI's API.",
    )
    wedlm_entropy_threshold: Threshold | None = Field(
        None,
        description="With wedlm_decoding: streaming, fill in all tokens of which the model is less uncertain "
        "than this, in nats, but at least one; none: one at a time. null: --wedlm-entropy-threshold. Not in "
        "OpenAI's API.",
    )
    wedlm_pos_penalty_factor: Annotated[float, Field(ge=0)] | None = Field(
        None,
        description="With wedlm_decoding: streaming, the uncertainty to add for each position ahead. null: "
        "--wedlm-pos-penalty-factor. Not in OpenAI's API.",
    )
    wedlm_anchor: bool | None = Field(
        None,
        description="With wedlm_decoding: streaming, whether every step also fills in the next token, as "
        "plain decoding would. null: --wedlm-anchor. Not in OpenAI's API.",
    )
