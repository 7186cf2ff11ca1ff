"""The output of one request: its choices parsed into parts, its usage and its timings."""

import time
from collections.abc import Sequence

from engine.request import Delta
from server.errors import ApiError, RequestFailedError
from server.generation.service import Service
from server.generation.submission import Submission
from server.logs import LOGGER, RequestRecord, log_prompt
from server.output.openai_objects import Timings, UsageBlock
from server.output.parts import ChoiceOutput, MakeParser, Part
from server.output.usage import count_usage, fill_record, measure_timings


class RequestOutput:
    """Parsed output of a submission, with one parser for each choice.

    record: the request's log record, completed by close().
    """

    def __init__(
        self, service: Service, record: RequestRecord, submission: Submission, make_parser: MakeParser
    ) -> None:
        self.submission = submission
        self._service = service
        self._record = record
        self._parsers = [make_parser() for _ in submission.engine_requests]

    @property
    def is_complete(self) -> bool:
        """Whether every choice has finished normally."""
        return self.submission.is_complete

    async def receive(self) -> list[tuple[int, Part]]:
        """Wait for a part and return all that have arrived, as (index of the choice, part).

        Returns an empty list after keep_alive_s without a part, even if a long tool call is being generated.
        Raises ApiError if a sequence failed, once all earlier events have been returned, and ClientGoneError
        if the client has disconnected.
        """
        parts: list[tuple[int, Part]] = []
        deadline = time.monotonic() + self._service.settings.keep_alive_s
        while not parts:
            events = await self.submission.receive()
            for index, event in events:
                parser = self._parsers[index]
                new_parts = parser.read(event) if isinstance(event, Delta) else parser.end(event)
                parts += [(index, part) for part in new_parts]
            if not events or time.monotonic() > deadline:
                break
        return parts

    async def wait_for_choices(self) -> Sequence[ChoiceOutput]:
        """Wait for all choices to finish and return them. Raises as receive() does."""
        await self.submission.wait_until_complete()
        outputs = []
        for index, parser in enumerate(self._parsers):
            output = ChoiceOutput()
            for delta in self.submission.deltas[index]:
                for part in parser.read(delta):
                    output.add(part)
            for part in parser.end(self.submission.finished[index]):
                output.add(part)
            outputs.append(output)
        return outputs

    def usage(self) -> UsageBlock:
        """Return the token counts so far."""
        submission = self.submission
        num_reasoning = sum(parser.num_reasoning_tokens for parser in self._parsers)
        return count_usage(
            submission.engine_requests, submission.ended, submission.num_choices, num_reasoning
        )

    def timings(self) -> Timings:
        """Return the timings. All sequences must have ended."""
        ended = self.submission.ended
        return measure_timings([ended[index] for index in range(len(self.submission.engine_requests))])

    def record_error(self, fault: ApiError) -> None:
        """Note in the log record the error that a running stream ends with."""
        self._record.note(fault.code or fault.type)

    def record_internal_error(self) -> ApiError:
        """Log the server error that is being handled and return the error to send to the client."""
        LOGGER.exception("%s %s failed in its stream", self._record.id, self._record.endpoint)
        fault = RequestFailedError.internal(self._record.id)
        self.record_error(fault)
        return fault

    async def close(self) -> None:
        """Cancel what is still running and complete the log record."""
        submission, record = self.submission, self._record
        for index, deltas in enumerate(submission.deltas):
            log_prompt(f"answered [{index}]", "".join(delta.text for delta in deltas))
        has_failed = submission.has_failed
        await submission.close()
        fill_record(record, submission.engine_requests, submission.ended, submission.num_choices)
        if submission.is_complete:
            finished = submission.finished
            record.finish_reason = " ".join(
                finished[i].reason for i in range(len(submission.engine_requests))
            )
        else:
            record.finish_reason = "error" if has_failed else "cancelled"
