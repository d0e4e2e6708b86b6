//! Adapts a frozen BERT to a task with low-rank matrices (LoRA): which of two vocabularies is a text from?
//!
//!     cargo run -p shardax-examples --example bert_lora
//!     cargo run --release --example bert_lora -- --model FOLDER     # of `transformers`, with a head for two classes
//!
//! Without a folder the model has random weights. The texts are random tokens.

use std::path::PathBuf;

use clap::Parser;
use shardax_alloc as _;
use shardax_models::{Adapter, Bert, BertOptions, Config, Pretrained};
use shardax_nn::prelude::*;

/// Trains low-rank matrices next to a frozen BERT.
#[derive(Parser)]
struct Cli {
    /// A folder with `config.json` and weights
    #[arg(long, value_name = "FOLDER")]
    model: Option<PathBuf>,
    #[arg(long, default_value_t = 60)]
    steps: u32,
    #[arg(long, default_value_t = 4)]
    rank: usize,
}

const CONFIG: &str = r#"{"model_type": "bert", "architectures": ["BertForSequenceClassification"], "num_labels": 2,
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 16, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu"}"#;

/// Texts of 8 tokens, `[count, 8]`, and their classes: texts of class 0 have tokens below 32, texts of class 1 the others.
fn texts(key: Array, count: usize) -> (Array, Array) {
    let [class_key, token_key] = random::split_n(key);
    let classes = random::randint(class_key, count, 0, 2);
    (random::randint(token_key, [count, 8], 0, 32) + classes.expand_dims(-1) * 32, classes)
}

#[jit(donate = [optimizer])]
fn train_step(
    model: Bert,
    mut optimizer: Optimizer<Adapter>,
    tokens: Array,
    classes: Array,
) -> Result<(Optimizer<Adapter>, Array)> {
    let loss = optimizer.minimize(|adapter| -> Result<Array> {
        let logits = adapter.apply(&model)?.forward(&tokens, &BertOptions::new());
        Ok(softmax_cross_entropy_with_integer_labels(logits, &classes).mean(..))
    })?;
    Ok((optimizer, loss))
}

#[jit]
fn evaluate(model: Bert, tokens: Array, classes: Array) -> Array {
    accuracy(model.forward(tokens, &BertOptions::new()), classes)
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let mut rngs = Rngs::new(0);
    let model = match &cli.model {
        Some(folder) => Bert::from_pretrained(folder)?,
        None => Bert::from_config(&Config::from_json(CONFIG)?, &mut rngs)?,
    };
    let adapter = Adapter::new(&model, ["attention.query", "attention.value"], cli.rank, 16.0, &mut rngs)?;
    println!("{} parameters, of which {} are trained", model.parameter_count(), adapter.parameter_count());
    let mut optimizer = Optimizer::wrt(adapter, adam(2e-2), Filter::of::<LoRAParam>())?;

    let (test_tokens, test_classes) = texts(random::key(1), 256);
    println!("accuracy before: {:.3}", evaluate(&model, &test_tokens, &test_classes)?);
    for step in 1..=cli.steps {
        let (tokens, classes) = texts(random::fold_in(random::key(2), step), 64);
        let (next, loss) = train_step(&model, optimizer, tokens, classes)?;
        optimizer = next;
        if step % 20 == 0 {
            println!("step {step}: loss {loss:.4}");
        }
    }
    let adapted = optimizer.model.apply(&model)?;
    println!("accuracy after: {:.3}", evaluate(&adapted, &test_tokens, &test_classes)?);
    Ok(())
}
