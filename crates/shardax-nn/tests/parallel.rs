//! One model and one step on many devices: each way to split them against one device, and what it sends.

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
