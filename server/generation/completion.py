"""Answer a completions request, whichever API it came through; a presenter formats the output."""

from fastapi import Request, Response
from pydantic_core import to_json

from reprise.server.generation.engine_requests.choices import Prompts
from reprise.server.generation.prompts.infill import Hole, fim_of
from reprise.server.generation.respond import respond
from reprise.server.generation.service import Service
from reprise.server.http.request_log import note_ignored
from reprise.server.output.parsing.checked import WholeSchemas, checked
from reprise.server.output.parsing.parts import MakeParser
from reprise.server.output.parsing.text_parser import PlainParser, echo_parsers
from reprise.server.output.presenter import Presenter
from reprise.server.requests.completions import CompletionRequest
from reprise.server.validation.constraints.relaxed_schema import modern


async def answer_completion(
    request: Request, service: Service, body: CompletionRequest, presenter: Presenter, model: str
) -> Response:
    """Continue the prompts of a request, or fill in the text between its prompt and its suffix.

    model: the model's name, for errors. Raises ApiError before any of the response is sent.
    """
    has_fim, is_liberal = (
        service.engine.tokenizer.fim is not None,
        service.settings.unknown_fields != "refuse",
    )
    if body.suffix and body.echo and not has_fim and is_liberal:
        # Who wants the prompt repeated wants it continued, and this model can do that.
        note_ignored(request, ["suffix"])
        body = body.model_copy(update={"suffix": None})
    if body.suffix:
        fim = fim_of(service.engine.tokenizer, model, "suffix")
        holes = [Hole(str(prompt), body.suffix) for prompt in body.prompt]
        prompts, body = (
            await service.prompts.encode_holes(request, fim, holes, body),
            body.with_stops(fim.ends),
        )
    else:
        prompts = await service.prompts.encode_prompts(request, body)
    grammar, is_relaxed = await service.prompts.grammars.compile_requested(request, body)
    make_parser: MakeParser = PlainParser
    if body.echo or body.is_scoring:
        texts = await service.prompts.decode_prompts(request, body) if body.echo else [""] * len(prompts)
        make_parser = echo_parsers(texts, body.n, body.is_scoring)
    schema = to_json(modern(body.relaxable_schema)).decode() if is_relaxed else None
    make_parser = checked(make_parser, WholeSchemas(schema))
    return await respond(request, service, body, Prompts(prompts, grammar), presenter, make_parser)
