"""Makes the cases of chat templates that the tests of `shardax_models` read: what `transformers` renders.

    .venv/huggingface/bin/python tools/huggingface/text.py
"""

import json
import pathlib

from transformers.utils.chat_template_utils import render_jinja_template

OUT = pathlib.Path(__file__).parents[2] / "crates/shardax-models/tests/golden/text"

# Each uses functions of Jinja, of Python and of transformers that published templates use.
TEMPLATES = {
    "markers": """{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
<|system|>You help.<|end|>
    {%- endif %}
<|{{ message['role'] }}|>{{ message['content'].strip() }}<|end|>
{%- endfor %}
{% if add_generation_prompt %}
<|assistant|>
{% endif %}""",
    "lines": """{{ bos_token }}
{% for message in messages %}
    {% if message.role == 'user' %}
[user]
{{ message.content }}
    {% else %}
[{{ message.role | upper }}]
{{ message.content | trim }}{{ eos_token }}
    {% endif %}
{% endfor %}
""",
    "namespace": """{%- set ns = namespace(count=0, last='') -%}
{%- for message in messages if message.role != 'tool' -%}
    {%- set ns.count = ns.count + 1 -%}
    {%- set ns.last = message.content -%}
    {%- if message.content is string -%}{{ loop.index0 }}/{{ loop.length }}:{{ message.content[:5] }};{%- endif -%}
{%- endfor -%}
{{ ns.count }} {{ ns.last | length }} {{ ns.last.split(' ')[-1] }}{{ messages[::-1][0].role }}{{ messages[-1]['content'].startswith('Hi') }}""",
    "tools": """{%- if tools is not none -%}
Tools:
{% for tool in tools %}
{{ tool | tojson }}
{{ tool.function.parameters | tojson(indent=2) }}
{% for name, about in tool.function.parameters.properties.items() %}{{ name }}={{ about.get('type', 'any') }}{{ ', ' if not loop.last }}{% endfor %}

{% endfor %}
{%- endif -%}
{%- macro shown(message) -%}
    <{{ message.role }}>{{ message.content or '' }}
    {%- if message.tool_calls is defined and message.tool_calls -%}
        {%- for call in message.tool_calls -%}{{ call.function.name }}({{ call.function.arguments | tojson }}){%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}{{ shown(message) }}{%- endfor -%}""",
    "raises": """{% if (messages[0].role == 'user') != (messages | length % 2 == 1) %}{{ raise_exception('Roles must alternate: user, assistant') }}{% endif %}ok""",
    "breaks": """{% for message in messages %}{% if message.role == 'assistant' %}{% break %}{% endif %}{% if message.role == 'system' %}{% continue %}{% endif %}{{ message.content | replace('e', 'E') }}{% endfor %}{% generation %}x{% endgeneration %}""",
    "parts": """{% for message in messages %}{% if message.content is string %}{{ message.content }}{% elif message.content is iterable %}{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% elif part['type'] in ['image', 'video'] %}<{{ part.type }}>{% endif %}{% endfor %}{% else %}{{ message.content }}{% endif %}|{% endfor %}{{ enable_thinking is defined and enable_thinking is false }}{{ "%s-%d" | format('a', 2) }}{{ {'a': 1, 'b': [true, none]} }}""",
    "think": """{%- for message in messages -%}{%- set content = message.content -%}{%- if '</think>' in content -%}{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}{%- endif -%}{{ content ~ '.' }}{%- endfor -%}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | map(attribute='role') | join(',') }}{{ 7 // 2 }}{{ 2 ** 3 }}{{ 'x' * 3 }}{{ [1, 2] + [3] }}""",
}
USER = {"role": "user", "content": " Hello there, \u00e9 <b>&\"'</b>\n"}
CONVERSATIONS = {
    "one": {"messages": [USER]},
    "several": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            USER,
            {"role": "assistant", "content": "<think>\nwell\n</think>\n\nHi there"},
            {"role": "user", "content": "Hi again"},
        ]
    },
    "tools": {
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"zone": 1.5, "city": "Z\u00fcrich"}}}],
            },
            {"role": "tool", "content": "{\"temperature\": 3}"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "It's <the> weather & more",
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"type": "string"}, "any": {}, "zone": {"type": "number", "enum": [1, 2.5, None, True]}},
                        "required": ["city"],
                    },
                },
            }
        ],
    },
    "parts": {
        "messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}],
        "variables": {"enable_thinking": False},
    },
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def main():
    OUT.mkdir(exist_ok=True)
    cases = []
    for template_name, template in TEMPLATES.items():
        for name, conversation in CONVERSATIONS.items():
            # As texts, which keep the order of keys.
            texts = {key: json.dumps(value) for key, value in conversation.items()}
            case = {"name": f"{template_name} {name}", "template": template, **texts}
            try:
                rendered, _ = render_jinja_template(
                    conversations=[conversation["messages"]],
                    tools=conversation.get("tools"),
                    chat_template=template,
                    add_generation_prompt=True,
                    **TOKENS,
                    **conversation.get("variables", {}),
                )
                case["rendered"] = rendered[0]
            except Exception as error:
                case["error"] = str(error)
            cases.append(case)
    (OUT / "chat.json").write_text(json.dumps(cases, indent=1) + "\n")
    for case in cases:
        print(case["name"], "|", case.get("rendered", case.get("error"))[:80].replace("\n", "\\n"))


if __name__ == "__main__":
    main()
