"""The formats of tool calls, by the names that mlx-lm or engine/text/markers.py has for them.

All that mlx-lm 0.32.2 has a parser for are here, and llama3 and DeepSeek's, for which it has none.

A format is given twice: as patterns, which read what a model may write, and as the text that its chat
template writes, from which grammars are made. In these texts `BREAK` stands for an optional line break and
`DIGITS` for a number, `IS_TEXT` for whether a value is text or JSON: true or false, and `TYPE` for the name
of a value's JSON type.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal

from reprise.engine.text.markers import Markers

BREAK, DIGITS, IS_TEXT = "\N{SYMBOL FOR NEWLINE}", "\N{NUMERO SIGN}", "\N{DOUBLE QUESTION MARK}"
TYPE = "\N{DOUBLE EXCLAMATION MARK}"
_NAME = r"(?P<name>[\w.-]++)"
OtherForm = Literal["object", "list", "plain"]
"""How models write a section's calls besides their format: one JSON object, a JSON list of them, or plain.

A plain call is a name and its arguments: a JSON object, or words like key=value.
"""
_ATTRIBUTES = r"(?:\s+(?!tool=)\w+=\"[^\"]*\")*+"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """What the formats have in common.

    head, tail: match what precedes the arguments, from the last call on, and what follows them.
    before, after_name, after: what is written before the name, after it, and after the arguments.
    opening, separator, closing: what is written before all calls of a section, between them, and after them.
    needs_known_name: a call of a tool that is not in the request is text.
    other_forms: how else models write the calls of a section.
    """

    head: re.Pattern[str]
    tail: re.Pattern[str]
    before: str = ""
    after_name: str
    after: str = ""
    opening: str = ""
    separator: str = ""
    closing: str = ""
    is_one_per_section: bool = False
    needs_known_name: bool = False
    other_forms: tuple[OtherForm, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFormat(CallFormat):
    """A format whose arguments are a JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedFormat(CallFormat):
    """A format in which every argument stands between tags of its own.

    key: matches what precedes a value.
    before_key, after_key, value_end: what is written around an argument's name and value.
    after_value: what is written between an argument and what follows it.
    has_breaks: a line break before a value and one before value_end do not belong to the value.
    quotes: what may stand around a value. A value without them is stripped.
    has_entities: quotes and ampersands in arguments' names are written as XML's entities.
    object_head, object_end: match and follow all arguments as one JSON object, instead of arguments in tags.
    guesses_json: a value without a known type is JSON if it can be.
    """

    key: re.Pattern[str]
    before_key: str
    after_key: str
    value_end: str
    after_value: str = ""
    has_breaks: bool = False
    quotes: tuple[str, str] | None = None
    has_entities: bool = False
    object_head: re.Pattern[str] | None = None
    object_end: str = ""
    guesses_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFormat(CallFormat):
    """A format in which arguments are names and literals: as Python has them, or with other quotes.

    key: matches what precedes a value, a comma included.
    after_key, comma: what is written between a name and its value, and between two arguments.
    quotes: what strings stand between; the grammar writes the first.
    constants: what is written for true, false and null.
    is_python: values are Python's: strings have escapes, and names within objects quotes. Otherwise there are
        neither, and arguments are in alphabetical order.
    """

    key: re.Pattern[str]
    after_key: str
    comma: str
    quotes: tuple[str, ...]
    constants: tuple[str, str, str] = ("true", "false", "null")
    is_python: bool = False


def _json_head(start: str, keys: str = "arguments") -> re.Pattern[str]:
    return re.compile(rf'{start}"(?P<name>[^"\\]+)"\s*+,\s*+"(?:{keys})"\s*+:\s*+(?=\{{)')


def _arg_tags(prefix: str, call: str, *other_forms: OtherForm) -> TaggedFormat:
    """Return the format that GLM began: a name, then pairs of tags."""
    key, value = f"{prefix}arg_key", f"{prefix}arg_value"
    return TaggedFormat(
        head=re.compile(rf"\s*+{_NAME}\s*+(?=<)"),
        key=re.compile(rf"\s*+<{key}>(?P<key>[^<>]+)</{key}>(?:\s|\\n)*+<{value}>"),
        tail=re.compile(rf"\s*+</{call}>"),
        after_name=BREAK,
        before_key=f"<{key}>",
        after_key=f"</{key}>{BREAK}<{value}>",
        value_end=f"</{value}>",
        after_value=BREAK,
        is_one_per_section=True,
        guesses_json=True,
        other_forms=other_forms,
    )


def _invocations(prefix: str, after_name: str = r"\s*+", after_key: str = '">') -> TaggedFormat:
    """Return the format in which an invocation holds parameters, whose names are attributes of tags.

    prefix: of the tags. after_name: matches what follows a parameter's name; after_key: what is written.
    """
    return TaggedFormat(
        head=re.compile(rf'\s*+<{prefix}invoke\s+name="(?P<name>[^"<>]+)"\s*+>'),
        key=re.compile(rf'\s*+<{prefix}parameter\s+name="(?P<key>[^"<>\n]+)"{after_name}>'),
        tail=re.compile(rf"\s*+</{prefix}invoke>"),
        before=f'<{prefix}invoke name="',
        after_name='">\n',
        before_key=f'<{prefix}parameter name="',
        after_key=after_key,
        value_end=f"</{prefix}parameter>",
        after_value="\n",
        after=f"</{prefix}invoke>\n",
        opening="\n",
    )


def _gemma(quote: str) -> ListedFormat:
    return ListedFormat(
        head=re.compile(rf"\s*+call:{_NAME}\s*+\{{"),
        key=re.compile(r"\s*+,?\s*+(?P<key>[^\s:{}\[\],<>]+)\s*+:\s*+"),
        tail=re.compile(r"\s*+\}"),
        quotes=(quote,),
        before="call:",
        after_name="{",
        after_key=":",
        comma=",",
        after="}",
        is_one_per_section=True,
    )


PYTHONIC = ListedFormat(
    head=re.compile(r"\s*+[\[,]\s*+(?P<name>[\w.-]++)\s*+\("),
    key=re.compile(r"\s*+,?\s*+(?P<key>\w+)\s*+=\s*+"),
    tail=re.compile(r"\s*+\)"),
    quotes=('"', "'"),
    after_name="(",
    after_key="=",
    comma=", ",
    after=")",
    constants=("True", "False", "None"),
    opening="[",
    separator=", ",
    closing="]",
    is_python=True,
)

FORMATS: dict[str, CallFormat] = {
    "json_tools": JsonFormat(
        head=_json_head(r'\s*+\{\s*+"name"\s*+:\s*+'),
        tail=re.compile(r"\s*+\}"),
        before='\n{"name": "',
        after_name='", "arguments": ',
        after="}\n",
        is_one_per_section=True,
        other_forms=("object", "list"),
    ),
    "llama3": JsonFormat(
        head=_json_head(r'(?:\s*+;?\s*+\{\s*+"name"\s*+:\s*+)?', "parameters|arguments"),
        tail=re.compile(r"\s*+\}"),
        before='"',
        after_name='", "parameters": ',
        after="}",
        separator='; {"name": ',
        needs_known_name=True,
    ),
    "mistral": JsonFormat(
        head=re.compile(
            rf"\s*+(?:\[TOOL_CALLS\])?\s*+{_NAME}\s*+(?:\[CALL_ID\]\s*+(?P<id>\w+)\s*+)?\[ARGS\]\s*+(?=\{{)"
        ),
        tail=re.compile(""),
        after_name="[ARGS]",
        separator="[TOOL_CALLS]",
        other_forms=("list",),
    ),
    "mistral_list": JsonFormat(
        head=_json_head(r'\s*+[\[,]\s*+\{\s*+"name"\s*+:\s*+'),
        tail=re.compile(r'\s*+(?:,\s*+"id"\s*+:\s*+"[^"]*"\s*+)?\}'),
        before='{"name": "',
        after_name='", "arguments": ',
        after="}",
        opening=" [",
        separator=", ",
        closing="]",
        other_forms=("list",),
    ),
    "deepseek_v3": JsonFormat(
        head=re.compile(
            rf"\s*+<｜tool▁call▁begin｜>\s*+(?:function<｜tool▁sep｜>)?{_NAME}"
            r"(?:<｜tool▁sep｜>|\s*+```json)\s*+(?=\{)"
        ),
        tail=re.compile(r"\s*+(?:```)?\s*+<｜tool▁call▁end｜>"),
        before="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        after_name="\n```json\n",
        after="\n```<｜tool▁call▁end｜>",
        separator="\n",
        needs_known_name=True,
    ),
    "kimi_k2": JsonFormat(
        head=re.compile(
            rf"\s*+(?:<\|tool_call_begin\|>\s*+)?(?P<id>(?:functions\.)?{_NAME}:\d+)\s*+"
            r"<\|tool_call_argument_begin\|>\s*+(?=\{)"
        ),
        # A call alone may lack its own tags.
        tail=re.compile(r"\s*+(?:<\|tool_call_end\|>|(?=<\|tool_calls_section_end\|>))"),
        before="<|tool_call_begin|>functions.",
        after_name=f":{DIGITS}<|tool_call_argument_begin|>",
        after="<|tool_call_end|>",
    ),
    "qwen3_coder": TaggedFormat(
        head=re.compile(r"\s*+<function=(?P<name>[^<>\s]+)\s*+>"),
        key=re.compile(r"\s*+<parameter=(?P<key>[^<>\n]++)\s*+>"),
        tail=re.compile(r"\s*+</function>"),
        before="\n<function=",
        after_name=">\n",
        before_key="<parameter=",
        after_key=">\n",
        value_end="\n</parameter>",
        after_value="\n",
        after="</function>\n",
        has_breaks=True,
        is_one_per_section=True,
    ),
    "minimax_m2": replace(
        _invocations(""),
        head=re.compile(r"\s*+<invoke name=([\"']?)(?P<name>[^\"'<>]++)\1\s*+>"),
        key=re.compile(r"\s*+<parameter name=([\"']?)(?P<key>[^\"'<>\n]++)\1\s*+>"),
    ),
    "deepseek_v32": replace(
        _invocations("｜DSML｜", r"\s+string=\"(?P<is_text>true|false)\"\s*+", f'" string="{IS_TEXT}">'),
        needs_known_name=True,
    ),
    "minicpm5": TaggedFormat(
        head=re.compile(r"\s*+([\"']?)(?P<name>[^\s\"'<>]++)\1\s*+>"),
        key=re.compile(r"\s*+<param\s+name\s*+=\s*+([\"']?)(?P<key>[^\"'<>\n]++)\1\s*+>"),
        tail=re.compile(r"\s*+</function>"),
        before='"',
        after_name='">',
        before_key='<param name="',
        after_key='">',
        value_end="</param>",
        quotes=("<![CDATA[", "]]>"),
        is_one_per_section=True,
    ),
    "muse_spark": replace(
        _invocations("atem:"),
        head=re.compile(r'\s*+<atem:invoke\b[^<>]*?\bname="(?P<name>[^"<>]+)"\s*+>'),
        key=re.compile(r'\s*+<atem:parameter\b[^<>]*?\bname="(?P<key>[^"<>\n]+)"[^<>]*>'),
        guesses_json=True,
    ),
    "kimi_k3": TaggedFormat(
        head=re.compile(
            rf"\s*+<\|open\|>call{_ATTRIBUTES}\s+tool=\"(?P<name>[^\"]+)\"{_ATTRIBUTES}\s*+<\|sep\|>"
        ),
        key=re.compile(
            r"\s*+<\|open\|>argument\s+key=\"(?P<key>[^\"]+)\"(?:\s+type=\"(?P<is_text>\w+)\")?\s*+<\|sep\|>"
        ),
        tail=re.compile(r"\s*+<\|close\|>call<\|sep\|>"),
        before='<|open|>call tool="',
        after_name=f'" index="{DIGITS}"<|sep|>',
        before_key='<|open|>argument key="',
        after_key=f'" type="{TYPE}"<|sep|>',
        value_end="<|close|>argument<|sep|>",
        after="<|close|>call<|sep|>",
        has_entities=True,
        object_head=re.compile(rf"\s*+<\|open\|>json{_ATTRIBUTES}\s*+<\|sep\|>"),
        object_end="<|close|>json<|sep|>",
    ),
    "gemma4": _gemma('<|"|>'),
    "function_gemma": _gemma("<escape>"),
    "pythonic": PYTHONIC,
    "glm47": _arg_tags("", "tool_call", "object", "list", "plain"),
    "laguna": _arg_tags("", "tool_call", "object", "list", "plain"),
    "longcat": _arg_tags("longcat_", "longcat_tool_call", "object"),
}
FORMATS["deepseek_v31"] = replace(
    FORMATS["deepseek_v3"],
    before="<｜tool▁call▁begin｜>",
    after_name="<｜tool▁sep｜>",
    after="<｜tool▁call▁end｜>",
    separator="",
)


def find_format(markers: Markers) -> CallFormat | None:
    """Return the format of a model's tool calls; None if it is not known here, so that calls are text."""
    name = markers.call_format
    if name == "mistral" and not any(marker.text == "[ARGS]" for marker in markers.inner):
        name = "mistral_list"
    return FORMATS.get(name)
