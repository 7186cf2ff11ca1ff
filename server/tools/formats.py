"""The formats of tool calls, by the names that mlx-lm or engine/text/markers.py has for them.

All formats with a parser in mlx-lm 0.32.2 are here, and llama3's and DeepSeek's, which have none there.

A format is defined twice: by patterns for reading what a model may write, and by the chat template's text,
from which grammars are made. In that text `BREAK` stands for an optional line break, `DIGITS` for a number,
`IS_TEXT` for true (a value is text) or false (JSON), and `TYPE` for the name of a value's JSON type.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal

from reprise.engine.text.markers import Markers

BREAK, DIGITS, IS_TEXT = "\N{SYMBOL FOR NEWLINE}", "\N{NUMERO SIGN}", "\N{DOUBLE QUESTION MARK}"
TYPE = "\N{DOUBLE EXCLAMATION MARK}"
_NAME = r"(?P<name>[\w.:/-]++)"
OtherForm = Literal["object", "list", "plain"]
"""How models write a section's calls besides their format: one JSON object, a JSON list of them, or plain.

A plain call is a name and its arguments: a JSON object, or words like key=value.
"""
_ATTRIBUTES = r"(?:\s+(?!tool=)\w+=\"[^\"]*\")*+"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """The common part of all formats.

    head, tail: match the text from the last call to the arguments, and the text after them.
    before, after_name, after: the text before the name, after it, and after the arguments.
    opening, separator, closing: the text before all calls of a section, between them, and after them.
    needs_known_name: whether a call of a tool that is not in the request is text.
    other_forms: other ways in which models write a section's calls.
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
    """A format in which every argument has its own tags.

    key: matches the text before a value.
    before_key, after_key, value_end: the text around an argument's name and value.
    after_value: the text after an argument.
    has_breaks: whether line breaks before a value and before value_end are not part of the value.
    quotes: delimiters that may enclose a value. A value without them is stripped.
    has_entities: whether quotes and ampersands in argument names are XML entities.
    object_head, object_end: match and follow all arguments as one JSON object, instead of arguments in tags.
    guesses_json: whether a value of unknown type is JSON if possible.
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
    """A format in which arguments are names and literals, as in Python or with other quotes.

    key: matches the text before a value, including a comma.
    after_key, comma: the text between a name and its value, and between two arguments.
    quotes: string delimiters; the grammar writes the first.
    constants: the spelling of true, false and null.
    is_python: whether strings have escapes and names within objects are quoted, as in Python. If not,
        arguments are also in alphabetical order.
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
    """Return GLM's kind of format: a name, then pairs of tags."""
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
    """Return a format of invocations with parameters, whose names are tags' attributes.

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
    head=re.compile(r"\s*+[\[,]\s*+(?P<name>[\w.:/-]++)\s*+\("),
    key=re.compile(r"\s*+,?\s*+(?P<key>\w+)\s*+=\s*+"),
    tail=re.compile(r"\s*+,?\s*+\)"),
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
            # The name may have colons, too.
            r"\s*+(?:<\|tool_call_begin\|>\s*+)?(?P<id>(?:functions\.)?(?P<name>[\w.:/-]+):\d++)\s*+"
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
    """Return the format of a model's tool calls; None if unknown, so that calls are text."""
    name = markers.call_format
    if name == "mistral" and not any(marker.text == "[ARGS]" for marker in markers.inner):
        name = "mistral_list"
    return FORMATS.get(name)
