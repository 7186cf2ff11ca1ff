"""Find the models that requests may ask for: in a folder of models, and in the cache of the model hub."""

from dataclasses import dataclass, replace
from pathlib import Path

from reprise.config.model_settings import display_name
from reprise.config.settings import Settings
from reprise.engine.interface.embeddings import Purpose
from reprise.engine.interface.errors import LoadFault, ModelError, ModelLoadError
from reprise.engine.model.files.folder_reader import read_json
from reprise.engine.model.files.model_folder import ModelFolder, describe_folder
from reprise.engine.model.hub import HubCache, HubError, HubFault, ReportBytes, pull

ADAPTER_CONFIG = "adapter_config.json"
_LOAD_FAULTS: dict[HubFault, LoadFault] = {
    "name": "unknown",
    "unknown": "unknown",
    "gated": "not_loadable",
    "kind": "not_loadable",
    "space": "no_space",
}
MAX_PARTS = 2
"""A model's folder is FOLDER/NAME or FOLDER/OWNER/NAME."""


@dataclass(frozen=True)
class FoundModel:
    """A model on disk. name: its name in requests. adapter: the folder of a LoRA adapter, if any."""

    name: str
    folder: ModelFolder
    adapter: Path | None = None


def choose_first(settings: Settings) -> Settings:
    """Default to the first loadable model in --models-dir if the settings name none.

    Models that mlx-lm can load come before those that embed or rank, each sorted by name. Without any, the
    settings are returned unchanged.
    """
    if settings.model is not None or settings.models_dir is None:
        return settings
    there = Catalogue(settings).in_folder()
    whole = [one for one in there if one.weight_bytes and not one.fault]
    first = min(whole, key=lambda one: one.purpose != "generate", default=None)
    return settings if first is None else replace(settings, model=str(first.path))


class Catalogue:
    """The models in --models-dir, and those in the hub's cache if requests may ask for them.

    The first model is the one that the server starts with. Thread-safe; reads the disk at every call. An
    adapter NAME in the folder makes a model BASE:NAME of every BASE.
    """

    def __init__(self, settings: Settings, hub: HubCache | None = None) -> None:
        self._settings = settings
        self._folder = Path(settings.models_dir) if settings.models_dir else None
        self._hub = (hub or HubCache()) if settings.serves_several else None

    @property
    def purpose(self) -> Purpose:
        """The purpose of the model that the server starts with, as far as its files are here."""
        return self._first().folder.purpose

    def find(self, name: str) -> FoundModel | None:
        """Return the model of a name; None if there is none."""
        if name == self._settings.model_name:
            return self._first()
        if name in self._settings.beside:
            return self._beside(name)
        if (folder := self._find_folder(name)) is not None:
            return FoundModel(name, folder)
        base, _, adapter = name.rpartition(":")
        path = self._path(adapter)
        if not base or path is None or not (path / ADAPTER_CONFIG).is_file():
            return None
        found = self.find(base)
        return found and replace(found, name=name, adapter=path)

    def list_all(self) -> list[FoundModel]:
        """Return all models, the one that the server starts with first. Other names are sorted."""
        first = self._first()
        here = {first.name: first}
        taken = first.folder.path.resolve()
        folders = self.in_folder() + (self._hub.list_models() if self._hub else [])
        others = sorted(folders, key=lambda folder: folder.name.lower())
        here |= {name: self._beside(name) for name in self._settings.beside}
        for folder in others:
            if folder.name not in here and folder.path.resolve() != taken:
                here[folder.name] = FoundModel(folder.name, folder)
        for file in sorted(self._folder.glob(f"*/{ADAPTER_CONFIG}")) if self._folder else ():
            if base := self._base_of(file.parent, here):
                name = f"{base.name}:{file.parent.name}"
                here[name] = replace(base, name=name, adapter=file.parent)
        return list(here.values())

    def weight_bytes(self, source: str) -> int:
        """Return the bytes of the weights in a folder, or of a model in the hub's cache; 0 for neither."""
        return self._named(source, source).folder.weight_bytes

    def pull(self, name: str, report: ReportBytes) -> None:
        """Download a model into the hub's cache. Raises ModelLoadError, or what report raises."""
        try:
            pull(name, report, self._hub)
        except HubError as fault:
            raise ModelLoadError(_LOAD_FAULTS.get(fault.kind, "unreachable"), str(fault)) from fault

    def _first(self) -> FoundModel:
        return self._named(self._settings.model_name, self._settings.model_source)

    def _beside(self, name: str) -> FoundModel:
        """Return a model that the settings name to embed or rank, even if its files describe a decoder."""
        settings, source = self._settings, self._settings.beside[name]
        found = self._named(name, source)
        if not found.folder.path.is_dir():
            fault = f"there is no folder {source}, and no model of that name in the hub's cache"
            return replace(found, folder=replace(found.folder, fault=fault))
        if found.folder.purpose != "generate" or found.folder.fault:
            return found
        embeds = name == display_name(settings.embedding_model or "")
        return replace(found, folder=replace(found.folder, purpose="embed" if embeds else "rerank"))

    def _named(self, name: str, source: str) -> FoundModel:
        """Return the model of a folder, or in the hub's cache. name: by which it is known."""
        path = Path(source)
        found = describe_folder(path, name) if path.is_dir() else _in_hub(self._hub or HubCache(), source)
        return FoundModel(name, found or ModelFolder(name, path, 0))

    def _find_folder(self, name: str) -> ModelFolder | None:
        path = self._path(name)
        if path is not None and (path / "config.json").is_file():
            return describe_folder(path, name)
        return _in_hub(self._hub, name) if self._hub else None

    def _path(self, name: str) -> Path | None:
        """Return the path of a name in --models-dir; None if there is no such model folder."""
        parts = name.split("/")
        if self._folder is None or len(parts) > MAX_PARTS or "\0" in name or {"", ".", ".."} & {*parts}:
            return None
        try:
            # A folder's name that is not in UTF-8 could not be listed.
            name.encode()
            # A folder within a model's folder is a part of it, such as a head.
            is_part = len(parts) > 1 and (self._folder / parts[0] / "config.json").is_file()
            return self._folder / name if not is_part and (self._folder / name).is_dir() else None
        # It may be too long for the file system.
        except (OSError, UnicodeEncodeError):
            return None

    def in_folder(self) -> list[ModelFolder]:
        """Return the models in the settings' folder, whole or not, sorted by name."""
        if self._folder is None:
            return []
        found = []
        for pattern in ("*/config.json", "*/*/config.json"):
            for file in self._folder.glob(pattern):
                name = file.parent.relative_to(self._folder).as_posix()
                # An adapter has no weights of this name.
                if self._path(name) and any(file.parent.glob("model*.safetensors")):
                    found.append(describe_folder(file.parent, name))
        return sorted(found, key=lambda folder: folder.name.lower())

    def _base_of(self, adapter: Path, models: dict[str, FoundModel]) -> FoundModel | None:
        """Return the model that an adapter was trained for, by its configuration; None if it is not here."""
        try:
            trained = str(read_json(adapter / ADAPTER_CONFIG)["model"])
        except (ModelError, OSError, ValueError, KeyError, TypeError):
            return None
        if trained in models:
            return models[trained]
        path = Path(trained).expanduser().resolve()
        return next((one for one in models.values() if one.folder.path.resolve() == path), None)


def _in_hub(hub: HubCache, name: str) -> ModelFolder | None:
    try:
        return hub.find(name)
    # No name of the hub looks like this.
    except HubError:
        return None
