//! Chat templates and tokenizers.

use serde::Deserialize;
use shardax_models::gguf::Gguf;
use shardax_models::text::{ChatTemplate, Tokenizer};
use shardax_nn::prelude::*;

use super::common::{Folder, fails};
use super::gguf::{Value, written};
use super::golden;

/// A conversation, and the text that `transformers` renders for it (`tools/huggingface/text.py`).
#[derive(Deserialize)]
struct Case {
    name: String,
    template: String,
    /// JSON text, because the order of its keys matters.
    messages: String,
    tools: Option<String>,
    variables: Option<String>,
    rendered: Option<String>,
}

#[test]
fn chat_templates_write_the_texts_of_transformers() -> Result<()> {
    let text = std::fs::read_to_string(golden("text/chat.json")).expect("a file");
    let cases: Vec<Case> = serde_json::from_str(&text).expect("cases");
    assert!(cases.len() > 30);
    for case in cases {
        let template = ChatTemplate::new(&case.template)?;
        let template = template.special_token("bos_token", "<s>".into()).special_token("eos_token", "</s>".into());
        let mut variables = case.variables.unwrap_or("{}".to_owned());
        if let Some(tools) = case.tools {
            variables = format!("{{\"tools\": {tools}}}");
        }
        let rendered = template.render_with(&case.messages, &variables);
        match case.rendered {
            Some(expected) => assert_eq!(rendered?, expected, "{}", case.name),
            None => assert!(rendered.is_err(), "{}: {rendered:?}", case.name),
        }
    }
    Ok(())
}

#[test]
fn chat_templates_that_raise_or_run_forever_are_errors() -> Result<()> {
    fails(ChatTemplate::new("{% for %}"), &["cannot parse the chat template", "line 1"]);
    let raises = ChatTemplate::new("\n{{ raise_exception('Roles must alternate') }}")?;
    fails(raises.render("[]"), &["rejects the conversation", "Roles must alternate", "line 2"]);
    fails(raises.render("{"), &["the messages of a conversation are not valid JSON"]);
    let long = ChatTemplate::new("{% for i in range(10000) %}{% for j in range(10000) %}x{% endfor %}{% endfor %}")?;
    fails(long.render("[]"), &["rejects the conversation"]);
    let dated = ChatTemplate::new("{{ strftime_now('%Y') }}")?;
    assert!(dated.render("[]")?.parse::<u32>().is_ok_and(|year| year >= 2025));
    Ok(())
}

/// The tokenizers of GGUF files: byte pairs with merges, and SentencePiece with scores.
#[test]
fn tokenizers_of_gguf_files_split_texts_like_their_models() -> Result<()> {
    let temp = Folder::new();
    let tokens =
        ["<unk>", "<s>", "</s>", "<0x0A>", "\u{2581}", "a", "b", "c", "ab", "\u{2581}ab", "abc", "<0xC3>", "<0xA9>"];
    let sentence = written(
        &[
            ("general.architecture", Value::Text("llama")),
            ("tokenizer.ggml.model", Value::Text("llama")),
            ("tokenizer.ggml.tokens", Value::Texts(&tokens)),
            ("tokenizer.ggml.scores", Value::Numbers(&[0., 0., 0., 0., -9., -9., -9., -9., -1., -2., -3., 0., 0.])),
            ("tokenizer.ggml.token_type", Value::Integers(&[2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 6, 6])),
            ("tokenizer.ggml.bos_token_id", Value::U32(1)),
            ("tokenizer.ggml.eos_token_id", Value::U32(2)),
            ("tokenizer.chat_template", Value::Text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")),
        ],
        &[],
    );
    let tokenizer = Tokenizer::from_pretrained(temp.write("a.gguf", sentence))?;
    assert_eq!(tokenizer.encode("ab abc")?, [1, 9, 9, 7]);
    assert_eq!(tokenizer.encode_part("c\n\u{e9}")?, [4, 7, 3, 11, 12]);
    assert_eq!(tokenizer.decode(&[1, 9, 9, 7, 2])?, "ab abc");
    assert_eq!(tokenizer.encode_chat(r#"[{"role": "user", "content": "ab"}]"#)?, [1, 9, 2]);
    // The bytes of a character are separate tokens.
    let mut stream = tokenizer.stream();
    let pushed: Vec<String> = [9, 11, 12, 7].into_iter().map(|token| stream.push(token)).collect::<Result<_>>()?;
    assert_eq!(pushed, ["ab", "", "\u{e9}", "c"]);
    // Bytes that are no character, and a character that is cut off, are replaced as in the whole text.
    let tokens = [9, 12, 12, 12, 12, 12, 7, 11];
    let mut stream = tokenizer.stream();
    let mut pushed: Vec<String> = tokens.into_iter().map(|token| stream.push(token)).collect::<Result<_>>()?;
    assert_eq!(pushed[6..], ["\u{fffd}\u{fffd}\u{fffd}c", ""]);
    pushed.push(stream.finish()?);
    assert_eq!(pushed.concat(), tokenizer.decode(&tokens)?);

    let pairs = written(
        &[
            ("general.architecture", Value::Text("qwen2")),
            ("tokenizer.ggml.model", Value::Text("gpt2")),
            ("tokenizer.ggml.pre", Value::Text("qwen2")),
            ("tokenizer.ggml.tokens", Value::Texts(&["a", "b", "\u{120}", "ab", "\u{120}ab", "1", "<|end|>"])),
            ("tokenizer.ggml.merges", Value::Texts(&["a b", "\u{120} ab"])),
            ("tokenizer.ggml.token_type", Value::Integers(&[1, 1, 1, 1, 1, 1, 3])),
        ],
        &[],
    );
    let tokenizer = Tokenizer::from_pretrained(temp.write("b.gguf", pairs))?;
    assert_eq!(tokenizer.encode("ab ab11<|end|>")?, [3, 4, 5, 5, 6]);
    assert_eq!(tokenizer.decode(&[3, 4, 6])?, "ab ab");
    fails(tokenizer.encode_chat("[]"), &["no chat template"]);

    let read_other = |kind: &'static str, pre: &'static str| {
        let metadata = [
            ("tokenizer.ggml.model", Value::Text(kind)),
            ("tokenizer.ggml.pre", Value::Text(pre)),
            ("tokenizer.ggml.tokens", Value::Texts(&["a"])),
        ];
        Gguf::open(temp.write("c.gguf", written(&metadata, &[])))?.tokenizer_json()
    };
    fails(read_other("bert", ""), &["has the kind Some(\"bert\")", "\"gpt2\" and \"llama\" are supported"]);
    fails(read_other("gpt2", "odd"), &["the pre-tokenizer \"odd\"", "\"qwen2\""]);
    fails(read_other("llama", ""), &["tokenizer.ggml.scores"]);
    Ok(())
}

#[test]
fn folders_have_their_tokenizer_and_template() -> Result<()> {
    let temp = Folder::new();
    fails(Tokenizer::from_pretrained(&temp.0), &["cannot read", "tokenizer.json"]);
    temp.write("tokenizer.json", r#"{"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "<s>": 1, "hi": 2}}, "pre_tokenizer": {"type": "WhitespaceSplit"}}"#);
    assert!(Tokenizer::from_pretrained(&temp.0)?.chat_template().is_none());
    let about = r#"{"bos_token": {"content": "<s>", "lstrip": false}, "chat_template": [{"name": "other", "template": "x"},
        {"name": "default", "template": "{{ bos_token }} {{ messages[0].content }}"}]}"#;
    temp.write("tokenizer_config.json", about);
    let messages = r#"[{"role": "user", "content": "hi"}]"#;
    assert_eq!(Tokenizer::from_pretrained(&temp.0)?.encode_chat(messages)?, [1, 2]);
    temp.write("chat_template.jinja", "{{ messages[0].content }} {{ bos_token }}");
    assert_eq!(Tokenizer::from_pretrained(&temp.0)?.encode_chat(messages)?, [2, 1]);
    Ok(())
}
