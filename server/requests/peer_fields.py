"""Translate fields of other servers: vLLM, llama-server, SGLang, Ollama, OpenRouter and a few more.

A field is translated if this server has one of the same meaning, in this or another API. Otherwise it is left
out, and named in the header x-reprise-ignored. A field that no server has stays, so that validation refuses
it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from llguidance.gbnf_to_lark import gbnf_to_lark

from reprise.server.errors import bad_field

Json = dict[str, Any]

MAX_GBNF_CHARACTERS = 16_384

_LEFT_OUT = {
    "vLLM": """
    best_of cache_salt chat_template detokenize documents enable_response_messages
    guided_decoding_backend guided_whitespace_pattern kv_transfer_params length_penalty
    mm_processor_kwargs priority prompt_embeds prompt_logprobs repetition_detection request_id
    return_tokens_as_token_ids skip_special_tokens spaces_between_special_tokens
    use_beam_search vllm_xargs
    """,
    "llama-server": """
    adaptive_decay adaptive_target backend_sampling cache_prompt chat_format dry_allowed_length dry_base
    dry_multiplier dry_penalty_last_n dry_sequence_breakers dynatemp_exponent dynatemp_range
    generation_prompt grammar_lazy grammar_triggers id_slot image_data input_prefix input_suffix lora
    min_keep mirostat mirostat_eta mirostat_tau n_cache_reuse n_discard n_indent n_keep parse_tool_calls
    penalize_nl penalty_prompt post_sampling_probs preserved_tokens reasoning_control reasoning_format
    reasoning_in_content repeat_last_n response_fields return_tokens samplers slot_id speculative.n_max
    speculative.n_min speculative.p_min speculative.type sse_ping_interval system_prompt
    t_max_predict_ms t_max_prompt_ms tfs_z thinking_forced_open top_n_sigma typical_p use_penalties
    xtc_probability xtc_threshold
    """,
    "Ollama": """
    context draft_num_predict embedding_only f16_kv images keep_alive logit_bias_type logits_all
    low_vram main_gpu num_batch num_ctx num_gpu num_gqa num_keep num_thread numa raw system template
    think_budget use_mlock use_mmap vocab_only
    """,
    "OpenRouter": """
    cache_control debug image_config models plugins preset provider route session_id
    structured_output_mode top_a trace transforms verbosity web_search_options
    """,
    "mlx-lm's server, LM Studio, Groq and Codex": """
    adapters citation_options client_metadata compound_custom disable_tool_validation draft_model
    num_draft_tokens repetition_context_size role_mapping search_settings ttl
    """,
}
_ELSEWHERE = """
    add_generation_prompt add_special_tokens bad_words continue_final_message truncate_prompt_tokens
    allowed_token_ids ignore_eos include_reasoning include_stop_str_in_output min_tokens return_progress
    return_token_ids stop_token_ids timings_per_token chat_template_kwargs frequency_penalty guided_choice
    guided_grammar guided_json guided_regex logit_bias min_p presence_penalty repetition_penalty seed
    thinking_budget_tokens
"""
"""Fields that have a meaning at some endpoints, and are left out at the others."""
LEFT_OUT = {server: tuple(names.split()) for server, names in _LEFT_OUT.items()}
"""Fields without a meaning here, by the servers that have them."""
IGNORED = frozenset(name for names in LEFT_OUT.values() for name in names) | set(_ELSEWHERE.split())
"""Fields of other servers that have no meaning here, or not for the body that has them."""
_RENAMED = {
    "repeat_penalty": ("repetition_penalty",),
    "n_predict": ("max_tokens", "max_output_tokens"),
    "num_predict": ("max_tokens", "max_output_tokens"),
    "n_cmpl": ("n",),
    "json_schema": ("guided_json",),
    "regex": ("guided_regex",),
    "thinking_token_budget": ("thinking_budget_tokens",),
}
"""The names of other servers' fields here: the first that a body has is used."""
_RENAMED_SISTERS = {
    "max_tokens": ("max_output_tokens",),
    "max_completion_tokens": ("max_tokens", "max_output_tokens"),
    "max_output_tokens": ("max_tokens",),
    "stop": ("stop_sequences",),
    "stop_sequences": ("stop",),
    "functions": ("tools",),
    "function_call": ("tool_choice",),
}
"""The same for fields of this server's other APIs."""
_LIMITS = ("max_tokens", "max_output_tokens")
_SWITCHES = {"true": True, "1": True, "false": False, "0": False}


def translate_fields(given: Json, known: frozenset[str], names: dict[str, str]) -> tuple[Json, list[str]]:
    """Translate other servers' fields in a body; return the body and the skipped fields.

    known: the fields of this API's body. names: gets this API's name -> the request's name of each translated
        field.
    Raises BadRequestError if a field of another server is malformed, or contradicts a field of this API.
    """
    if given.keys() <= known and not _has_schema_inside(given.get("response_format")):
        return given, []
    body = _Body(known, names, streams=given.get("stream") is True)
    # Fields of the body's own API come first: those of others are added to them, or contradict them.
    for name in sorted(given, key=lambda name: name not in known):
        body.take(name, given[name])
    messages = body.fields.get("messages")
    if body.system and isinstance(messages, list):
        body.fields["messages"] = [*body.system, *messages]
    return body.fields, body.ignored


def _object(name: str, value: Any) -> Json:
    if not isinstance(value, dict):
        raise bad_field(name, "must be an object", "invalid_type")
    return value


@dataclass
class _Body:
    """A body that is being translated. fields: in this API's names. ignored: what was left out.

    The methods for fields return whether the field has a meaning in this body.
    """

    known: frozenset[str]
    names: dict[str, str]
    streams: bool
    fields: Json = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    system: list[Any] = field(default_factory=list)

    def take(self, name: str, value: Any) -> None:
        """Add a field under its name in requests."""
        # Null means the default, here as in the fields of this API.
        if value is None and (name in self.known or name in UNDERSTOOD):
            return
        if name in self.known:
            has_schema = name == "response_format" and _has_schema_inside(value)
            self._set(name, name, _as_openai_has_it(value) if has_schema else value)
        elif name in ("options", "extra_body"):
            for inner, option in _object(name, value).items():
                self.take(inner, option)
        elif self._has_meaning(name, value):
            return
        elif name in IGNORED or name in _MEANINGS:
            self.ignored.append(name)
        else:
            self.fields[name] = value

    def _has_meaning(self, name: str, value: Any) -> bool:
        meaning = _MEANINGS.get(name) or _SISTERS.get(name)
        if meaning is None or (meaning[1] and self.known.isdisjoint(meaning[1])):
            return False
        return meaning[0](self, name, value)

    def rename(self, name: str, value: Any) -> bool:
        names = _RENAMED.get(name) or _RENAMED_SISTERS[name]
        own = next(own for own in names if own in self.known)
        # Peers write "no limit" as a negative number.
        if own in _LIMITS and type(value) is int and value < 0:
            return True
        return self._set(name, own, value)

    def refuse(self, name: str, value: Any) -> bool:
        if value not in ("", []) and "guided_grammar" in self.known:
            raise bad_field(name, f"is not supported; {_INSTEAD[name]}", "unsupported_parameter")
        return value in ("", [])

    def take_number(self, name: str, value: Any) -> bool:
        # There is always one choice in these bodies.
        if value != 1:
            phrase = "is supported only by chats; send as many requests"
            raise bad_field(name, phrase, "unsupported_parameter")
        return True

    def take_stored(self, name: str, value: Any) -> bool:
        if value and "messages" in self.known:
            phrase = "is supported only by /v1/responses; send all messages"
            raise bad_field(name, phrase, "unsupported_parameter")
        return not value

    def take_system(self, name: str, value: Any) -> bool:
        for own in ("instructions", "system"):
            if own in self.known:
                return self._set(name, own, value)
        if value:
            self.system.append({"role": "system", "content": value})
        return True

    def take_single_call(self, name: str, value: Any) -> bool:  # noqa: ARG002 - as all have
        """Move parallel_tool_calls into tool_choice, as in Anthropic's API."""
        if not isinstance(value, bool):
            return False
        choice = self.fields.get("tool_choice", "auto")
        choice = {"type": choice} if isinstance(choice, str) else choice
        if not value and isinstance(choice, dict):
            self.fields["tool_choice"] = {**choice, "disable_parallel_tool_use": True}
        return True

    def take_logprobs(self, name: str, value: Any) -> bool:  # noqa: ARG002 - as all have
        included = self.fields.get("include", [])
        if not isinstance(value, bool) or not isinstance(included, list):
            return False
        if value:
            self.fields["include"] = [*included, "message.output_text.logprobs"]
        return True

    def take_effort(self, name: str, value: Any) -> bool:
        if "reasoning_effort" in self.known:
            return self._set(name, "reasoning_effort", value)
        if "reasoning" in self.known:
            return self._set_inside(name, "reasoning", "effort", value)
        if "output_config" not in self.known:
            return False
        if value == "none":
            return self.take_thinking(name, False)
        return self._set_inside(name, "output_config", "effort", value)

    def take_text(self, name: str, value: Any) -> bool:
        for key, setting in _object(name, value).items():
            if setting is None:
                continue
            if key == "format":
                self.take_response_format(f"{name}.{key}", setting)
            elif key != "effort" or not self.take_effort(f"{name}.{key}", setting):
                self.ignored.append(f"{name}.{key}")
        return True

    def take_response_format(self, name: str, value: Any) -> bool:
        given = _object(name, {"type": value} if isinstance(value, str) else value)
        kind, inner = given.get("type"), given.get("json_schema")
        if _has_schema_inside(given):
            kind = "json_schema"
        flat = inner if isinstance(inner, dict) else {k: v for k, v in given.items() if k != "type"}
        return self._set_format(name, kind, flat)

    def _set_format(self, name: str, kind: Any, flat: Json) -> bool:
        if "response_format" in self.known:
            rest = {"json_schema": flat} if kind == "json_schema" else flat
            return self._set(name, "response_format", {"type": kind, **rest})
        if "text" in self.known:
            return self._set_inside(name, "text", "format", {"type": kind, **flat})
        if kind == "text":
            return True
        schema = {"type": "object"} if kind == "json_object" else flat.get("schema")
        if not isinstance(schema, dict):
            raise bad_field(name, "must be a json_schema with a schema, or a json_object", "invalid_value")
        output = {"type": "json_schema", "schema": schema}
        return self._set_inside(name, "output_config", "format", output)

    def _set_inside(self, name: str, own: str, key: str, value: Any) -> bool:
        outer = self.fields.get(own, {})
        if not isinstance(outer, dict):
            return True
        if outer.get(key, value) != value:
            raise bad_field(name, f"and {own}.{key} differ; send one of them", "invalid_value")
        if key not in outer:
            self.names[f"{own}.{key}"] = name
        self.fields[own] = {**outer, key: value}
        return True

    def take_grammar(self, name: str, value: Any) -> bool:
        if value == "":
            return True
        if not isinstance(value, str) or len(value) > MAX_GBNF_CHARACTERS:
            what = f"a GBNF grammar, a string of at most {MAX_GBNF_CHARACTERS} characters"
            raise bad_field(name, f"must be {what}", "invalid_type")
        try:
            lark = gbnf_to_lark(value)
        # The library raises Exception itself if a rule is missing, and an IndexError after a last backslash.
        except Exception as fault:  # noqa: BLE001 - no narrower class
            raise bad_field(name, f"is not a GBNF grammar: {fault}", "invalid_value") from None
        return self._set(name, "guided_grammar", lark)

    def take_structured(self, name: str, value: Any) -> bool:
        for kind, constraint in _object(name, value).items():
            if constraint is None:
                continue
            if kind == "json_object":
                if constraint:
                    self._set_format(f"{name}.{kind}", "json_object", {})
            elif kind in _INSTEAD:
                self.refuse(kind, constraint)
            elif (own := f"guided_{kind}") in self.known:
                self._set(f"{name}.{kind}", own, constraint)
            else:
                self.ignored.append(f"{name}.{kind}")
        return True

    def take_format(self, name: str, value: Any) -> bool:
        if value == "json":
            return self._set_format(name, "json_object", {})
        return value == "" or self._set(name, "guided_json", value)

    def take_probabilities(self, name: str, value: Any) -> bool:
        if value == 0:
            return True
        own = "top_logprobs" if "top_logprobs" in self.known else "logprobs"
        if own == "top_logprobs" and "logprobs" in self.known:
            self._set(name, "logprobs", True)
        return self._set(name, own, value)

    def take_usage(self, name: str, value: Any) -> bool:
        """Translate OpenRouter's request for token counts, which matters only for streams."""
        if not isinstance(value, dict):
            return False
        if value.get("include") is True and self.streams and "stream_options" not in self.fields:
            self._set(name, "stream_options", {"include_usage": True})
        return True

    def take_thinking(self, name: str, value: Any) -> bool:
        value = as_switch(value)
        if isinstance(value, str) and name == "think":
            return self.take_effort(name, value)
        if "chat_template_kwargs" not in self.known:
            return False
        if not isinstance(value, bool):
            raise bad_field(name, "must be a boolean", "invalid_type")
        arguments = self.fields.get("chat_template_kwargs")
        arguments = arguments if isinstance(arguments, dict) else {}
        self.fields["chat_template_kwargs"] = {"enable_thinking": value, **arguments}
        return True

    def take_reasoning(self, name: str, value: Any) -> bool:
        value = _object(name, value)
        is_off = value.get("type") == "disabled" or as_switch(value.get("enabled")) is False
        for key, setting in value.items():
            if key == "effort":
                self.take_effort(f"{name}.effort", setting)
            elif key == "exclude" and isinstance(setting, bool) and "include_reasoning" in self.known:
                self._set(f"{name}.{key}", "include_reasoning", not setting)
            elif key in ("max_tokens", "budget_tokens"):
                if not is_off:
                    self._set(f"{name}.{key}", "thinking_budget_tokens", setting)
            elif key == "enabled":
                self.take_thinking("enable_thinking", setting)
            elif key == "type" and setting in ("enabled", "disabled"):
                self.take_thinking("enable_thinking", setting == "enabled")
            else:
                self.ignored.append(f"{name}.{key}")
        return True

    def _set(self, name: str, own: str, value: Any) -> bool:
        before = self.fields.get(own, value)
        if own == "chat_template_kwargs" and isinstance(value, dict) and isinstance(before, dict):
            value = {**before, **value}
        elif before != value:
            other = self.names.pop(own, own)
            raise bad_field(name, f"and {other} differ; send one of them", "invalid_value")
        elif name != own and own not in self.fields:
            self.names[own] = name
        self.fields[own] = value
        return True


_Meaning = tuple[Callable[[_Body, str, Any], bool], tuple[str, ...]]
"""The method that takes a field, and the fields of which a body must have one; () for any body."""
_FORMATS = ("response_format", "text", "output_config")
_MEANINGS: dict[str, _Meaning] = {
    **{name: (_Body.rename, own) for name, own in _RENAMED.items()},
    **dict.fromkeys(("grammar", "ebnf"), (_Body.take_grammar, ("guided_grammar",))),
    "structured_outputs": (_Body.take_structured, ("guided_json",)),
    "format": (_Body.take_format, ("guided_json",)),
    "n_probs": (_Body.take_probabilities, ("top_logprobs", "logprobs")),
    "usage": (_Body.take_usage, ("stream_options",)),
    **dict.fromkeys(("enable_thinking", "think"), (_Body.take_thinking, ())),
    **dict.fromkeys(("reasoning", "thinking"), (_Body.take_reasoning, ("chat_template_kwargs",))),
    "system": (_Body.take_system, ("instructions", "system", "messages")),
}
_SISTERS: dict[str, _Meaning] = {
    **{name: (_Body.rename, own) for name, own in _RENAMED_SISTERS.items()},
    **dict.fromkeys(("response_format", "output_format"), (_Body.take_response_format, _FORMATS)),
    **dict.fromkeys(("text", "output_config"), (_Body.take_text, _FORMATS)),
    "reasoning_effort": (_Body.take_effort, ()),
    "instructions": _MEANINGS["system"],
    "parallel_tool_calls": (_Body.take_single_call, ("tool_choice",)),
    "logprobs": (_Body.take_logprobs, ("include",)),
    "n": (_Body.take_number, ("max_output_tokens", "stop_sequences")),
    **dict.fromkeys(("previous_response_id", "conversation"), (_Body.take_stored, ())),
    **dict.fromkeys(("structural_tag", "stop_regex"), (_Body.refuse, ())),
}
"""What fields of this server's other APIs mean in a body without them, and constraints that none has."""
_INSTEAD = {
    "structural_tag": "send guided_json, guided_grammar, or tools with strict: true",
    "stop_regex": "send strings that end the answer as 'stop'",
}
UNDERSTOOD = tuple(sorted({*_MEANINGS, *_SISTERS, "options", "extra_body"} - {*_INSTEAD}))
"""Fields of other servers and other APIs that become fields of a body without them."""


def as_switch(value: Any) -> Any:
    """Convert a switch written as text or number to a boolean; return other values unchanged."""
    if isinstance(value, str):
        return _SWITCHES.get(value.strip().lower(), value)
    return bool(value) if type(value) is int and value in (0, 1) else value


def _has_schema_inside(response_format: object) -> bool:
    """Return whether a response_format has its schema next to its type, like llama-server's."""
    return isinstance(response_format, dict) and isinstance(response_format.get("schema"), dict)


def _as_openai_has_it(response_format: Json) -> Json:
    rest = {name: value for name, value in response_format.items() if name not in ("type", "schema")}
    named = {"name": "schema", "schema": response_format["schema"]}
    return {"type": "json_schema", "json_schema": named, **rest}
