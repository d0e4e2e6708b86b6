//! The built-in steps of the command `shardax-plan`. You can copy one as the start of a planner for your own step.

mod cnn;
mod decoder;
mod mlp;
mod prompts;

use shardax::prelude::*;

use crate::error::value_error;
use crate::{Plan, Setup};

pub use cnn::cnn;
pub use decoder::{Sizes, decoder};
pub use mlp::mlp;
pub use prompts::prompts;

/// The names of the built-in steps.
pub const NAMES: [&str; 8] = ["mlp", "cnn", "gpt", "moe", "decoder-7b", "decoder-70b", "gpt-oss-20b", "deepseek-v3"];

/// Returns the built-in step with this name.
///
/// # Errors
/// Returns an error if the name is unknown.
#[track_caller]
pub fn named(name: &str, setup: &Setup) -> Result<Plan> {
    let plan = match name {
        "mlp" => mlp(setup),
        "cnn" => cnn(setup),
        "gpt" => decoder(setup, Sizes::SMALL),
        "moe" => decoder(setup, Sizes { experts: 8, ..Sizes::SMALL }),
        "decoder-7b" => decoder(setup, Sizes::BILLIONS_7),
        "decoder-70b" => decoder(setup, Sizes::BILLIONS_70),
        "gpt-oss-20b" => prompts::gpt_oss_20b(setup),
        "deepseek-v3" => prompts::deepseek_v3(setup),
        _ => value_error(
            format!("{name:?} is none of {}", NAMES.join(", ")),
            "for a step of your own write a binary with `shardax_plan::main!`",
        ),
    }?;
    Ok(plan.named(name))
}
