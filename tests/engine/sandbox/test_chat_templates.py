"""A chat template is a program that comes with the model: it must not run code or block the server."""

import psutil
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from reprise.engine.sandbox.child_process import RenderError, TemplateProcess

CHAT = [[{"role": "user", "content": "héllo ☃ \ud800"}, {"role": "assistant", "content": None}]]


@pytest.fixture(scope="module")
def process():
    made = TemplateProcess(time_limit_s=2.0)
    yield made
    made.stop()


def _render(process, template, **given):
    return process.render(conversations=CHAT, chat_template=template, **given)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ bos }}{{ m.role }}: {{ m.content }}\n{% endfor %}",
        "{{ messages | tojson(indent=2) }}{{ tools | tojson }}{{ flag }}{{ numbers | sum }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{% generation %}{{ strftime_now('%Y') }}{% endgeneration %}{{ dict(a=1) }}",
        "{%- for m in messages %}{{ m.role }}{% break %}{% endfor -%}",
    ],
)
def test_it_renders_what_transformers_would(process, template):
    given = {"tools": [{"type": "function"}], "bos": "<s>", "flag": True, "numbers": [1, 2.5]}
    expected = render_jinja_template(conversations=CHAT, chat_template=template, **given)
    assert _render(process, template, **given) == expected


def test_an_error_is_the_template_s_own(process):
    with pytest.raises(RenderError, match=r"^roles must alternate$"):
        _render(process, "{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('touch FILE').read() }}",
        "{{ lipsum.__globals__['os'].system('touch FILE') }}",
        "{{ ('%s'|attr('format'))|attr('__globals__') }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as a %}",
        "{{ open('/etc/passwd').read() }}",
        "{{ import('os') }}",
    ],
)
def test_it_reaches_no_code_and_no_file(process, tmp_path, template):
    file = tmp_path / "made"
    try:
        ((rendered,), _) = _render(process, template.replace("FILE", str(file)))
    except RenderError:
        rendered = ""
    assert not file.exists()
    assert "root:" not in rendered
    assert "module" not in rendered
    assert "built-in" not in rendered


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 9 ** (9 ** 9) }}",
        pytest.param("{{ 'a' * 10 ** 11 }}", marks=pytest.mark.slow),
        "{{ 'a' | center(10 ** 11) }}",
        pytest.param(
            "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "{{ '%0999999999d' % 1 }}{{ '%0999999999d' % 1 }}{{ '%0999999999d' % 1 }}",
            marks=pytest.mark.slow,
        ),
        "{% macro a() %}{{ a() }}{{ a() }}{% endmacro %}{{ a() }}",
    ],
)
def test_a_template_that_takes_too_much_is_killed_and_the_next_one_renders(process, template):
    with pytest.raises(RenderError):
        _render(process, template)
    assert _render(process, "{{ messages[0].role }}")[0] == ["user"]


def test_a_prompt_that_is_too_long_is_the_templates_fault(process):
    with pytest.raises(RenderError):
        _render(process, "{{ 'a' * 10 ** 8 }}")


def test_the_process_does_not_inherit_the_environment(process, monkeypatch):
    monkeypatch.setenv("REPRISE_API_KEY", "secret")
    process.stop()
    assert _render(process, "{{ messages[0].role }}")[0] == ["user"]
    children = [one for one in psutil.Process().children() if "-I" in one.cmdline()]
    # Other tests have processes too; the newest is this test's.
    child = max(children, key=lambda one: one.create_time())
    assert "secret" not in child.environ().values()
