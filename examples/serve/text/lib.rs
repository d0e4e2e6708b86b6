//! A server of texts: the model's thread (`engine`), and OpenAI's interface over HTTP (`http`).

mod api;
mod engine;
mod http;

pub use engine::{Limits, Model};
pub use http::serve;
