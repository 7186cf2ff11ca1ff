"""A request's answers on their way from the engine, read into parts."""

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
    """What was submitted, and a reader for each choice."""

    def __init__(
        self, service: Service, record: RequestRecord, submission: Submission, make_parser: MakeParser
    ) -> None:
        self.submission = submission
        self._service = service
        self._record = record
        self._readers = [make_parser() for _ in submission.engine_requests]

    @property
    def is_complete(self) -> bool:
        """Whether every choice came to a good end."""
        return self.submission.is_complete

    async def receive(self) -> list[tuple[int, Part]]:
        """Wait for parts and return all there are; none after some silence, be it that of a long call.

        Raises ApiError when a sequence failed, after what came before that was returned, and
        ClientGoneError when the client has left.
        """
        parts: list[tuple[int, Part]] = []
        give_up_at = time.monotonic() + self._service.settings.keep_alive_s
        while not parts:
            events = await self.submission.receive()
            for index, event in events:
                reader = self._readers[index]
                read = reader.read(event) if isinstance(event, Delta) else reader.end(event)
                parts += [(index, part) for part in read]
            if not events or time.monotonic() > give_up_at:
                break
        return parts

    async def wait_for_choices(self) -> Sequence[ChoiceOutput]:
        """Wait for all ends. Raises as receive() does."""
        await self.submission.wait_until_complete()
        outputs = []
        for index, reader in enumerate(self._readers):
            output = ChoiceOutput()
            for delta in self.submission.deltas[index]:
                for part in reader.read(delta):
                    output.add(part)
            for part in reader.end(self.submission.finished[index]):
                output.add(part)
            outputs.append(output)
        return outputs

    def usage(self) -> UsageBlock:
        """Token counts up to now."""
        num_reasoning = sum(reader.num_reasoning_tokens for reader in self._readers)
        return count_usage(
            self.submission.engine_requests, self.submission.ended, self.submission.num_choices, num_reasoning
        )

    def timings(self) -> Timings:
        """What the answers took, once all have ended."""
        ended = self.submission.ended
        return measure_timings([ended[index] for index in range(len(self.submission.engine_requests))])

    def note(self, fault: ApiError) -> None:
        """Note in the log record what a stream that has begun ends with."""
        self._record.note(fault.code or fault.type)

    def record_internal_error(self) -> ApiError:
        """Log the fault of the server's own that is being handled; returns what the client is told of it."""
        LOGGER.exception("%s %s failed in its stream", self._record.id, self._record.endpoint)
        told = RequestFailedError.internal(self._record.id)
        self.note(told)
        return told

    async def close(self) -> None:
        """Free what still runs, and note in the log record and the metrics how it all ended."""
        submission, record = self.submission, self._record
        for index, deltas in enumerate(submission.deltas):
            log_prompt(f"answered [{index}]", "".join(delta.text for delta in deltas))
        has_failed = submission.has_failed
        await submission.close()
        fill_record(record, submission.engine_requests, submission.ended, self.submission.num_choices)
        if submission.is_complete:
            finished = submission.finished
            record.finish_reason = " ".join(
                finished[i].reason for i in range(len(submission.engine_requests))
            )
        else:
            record.finish_reason = "error" if has_failed else "cancelled"
