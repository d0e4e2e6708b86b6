//! Each way to split a model and a step over many devices is compared with one device, and its communication is
//! checked.

#[path = "parallel/forms.rs"]
mod forms;
#[path = "parallel/model.rs"]
mod model;
#[path = "parallel/pipelines.rs"]
mod pipelines;
#[path = "../../shardax/tests/common/quick.rs"]
#[allow(dead_code)]
mod quick;
#[path = "parallel/rings.rs"]
mod rings;

use quick::setup;
