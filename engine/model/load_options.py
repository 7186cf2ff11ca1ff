"""How a model is loaded, beside its name."""

from dataclasses import dataclass
from pathlib import Path

from config.settings import Settings


@dataclass(frozen=True)
class LoadOptions:
    """How a model is loaded.

    trusts_code: run Python code that comes with the model, if the model requires it.
    cache_folder: keeps tables of the tokens, and what is found out about the model, between starts.
    chat_template: takes the place of the model's own. mask_token_id: the same; only a WeDLM model has one.
    adapter: the folder of a LoRA adapter that is added to the model.
    sees: also load what the model sees images with, if it does.
    """

    trusts_code: bool = False
    cache_folder: Path | None = None
    chat_template: str | None = None
    mask_token_id: int | None = None
    adapter: str | None = None
    sees: bool = False

    @classmethod
    def of(cls, settings: Settings) -> "LoadOptions":
        """Return those that hold for every model: whether code is trusted, and where tables are kept."""
        # Where costs are kept, tables of tokens are too.
        file = settings.calibration_file
        return cls(settings.trust_remote_code, Path(file).parent if file else None)


NO_OPTIONS = LoadOptions()
