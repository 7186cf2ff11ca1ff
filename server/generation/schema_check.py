"""Check a finished answer against the whole schemas that a grammar enforces only in part."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from reprise.engine.interface.events import Delta, Finished
from reprise.engine.sandbox.child_process import CHECKER
from reprise.server.http.executor import SCHEMA_CHECKS
from reprise.server.output.parts import ChoiceOutput, EndPart, MakeParser, OutputParser, Part

Check = Callable[[str, str], bool | None]


@dataclass(frozen=True, slots=True)
class WholeSchemas:
    """The schemas, as JSON, against which an answer is checked.

    content: the schema of the content; None if it is not checked. arguments: schemas of calls, by tool name.
    """

    content: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.content is not None or bool(self.arguments)

    def check(self, output: ChoiceOutput, is_valid: Check) -> bool | None:
        """Return whether content and tool calls satisfy their schemas; None if is_valid cannot tell."""
        pairs = [(call.arguments, self.arguments.get(call.name)) for call in output.tool_calls]
        if self.content is not None and (output.text or not output.tool_calls):
            pairs.append((output.text, self.content))
        results = [is_valid(text, schema) for text, schema in pairs if schema is not None]
        if not results:
            # A call was demanded, and the answer may have been cut before it was complete.
            return output.end.finish_reason != "length"
        return False if False in results else None if None in results else True


class CheckedParser(OutputParser):
    """Parser whose EndPart says whether the answer satisfies the schemas. See OutputParser."""

    def __init__(self, inner: OutputParser, schemas: WholeSchemas, is_valid: Check) -> None:
        self._inner = inner
        self._schemas = schemas
        self._is_valid = is_valid
        self._parts: list[Part] = []

    def read(self, delta: Delta) -> list[Part]:
        """See OutputParser."""
        return self._note(self._inner.read(delta))

    def end(self, finished: Finished) -> list[Part]:
        """See OutputParser."""
        return self._note(self._inner.end(finished))

    def _note(self, parts: list[Part]) -> list[Part]:
        """Keep the parts for the check; hold the end back until it is made."""
        self._parts += parts
        self.num_reasoning_tokens = self._inner.num_reasoning_tokens
        if not parts or not isinstance(parts[-1], EndPart):
            return parts
        self.make_end = self._check
        return parts[:-1]

    async def _check(self) -> EndPart:
        output = ChoiceOutput.of(self._parts)
        result = await SCHEMA_CHECKS.run(self._schemas.check, output, self._is_valid)
        return replace(output.end, schema_valid="unknown" if result is None else result)


def checked(make_parser: MakeParser, schemas: WholeSchemas, is_valid: Check = CHECKER.is_valid) -> MakeParser:
    """Wrap a parser factory so that its parsers check the answer; without schemas, return it unchanged."""

    def make() -> OutputParser:
        return CheckedParser(make_parser(), schemas, is_valid)

    return make if schemas else make_parser
