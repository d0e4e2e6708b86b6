//! Spans and events of a run for a subscriber of `tracing`.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use shardax::prelude::*;
use shardax_train::checkpoint::{CheckpointManager, CheckpointManagerOptions};
use shardax_train::data::Source;
use shardax_train::{Average, MultiMetric, Trainer};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::Folder;

/// Notes the names of spans, and the texts of events.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn note(&self, text: String) {
        self.0.lock().expect("no panic").push(text);
    }

    fn count(&self, text: &str) -> usize {
        self.0.lock().expect("no panic").iter().filter(|seen| seen.starts_with(text)).count()
    }
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Seen {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.note(format!("span {}", span.metadata().name()));
        Id::from_u64(NEXT.fetch_add(1, Ordering::Relaxed))
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.note(format!("{} {}", event.metadata().level(), message.0));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn a_subscriber_gets_spans_and_lines() -> Result<()> {
    let events = Seen::default();
    tracing::subscriber::set_global_default(events.clone()).expect("the only one");
    let folder = Folder::new();
    let options = CheckpointManagerOptions::new().save_interval_steps(2);
    let mut checkpoints = CheckpointManager::new(folder.join("checkpoints"), options)?;
    let step = jit(|w: Array, x: Array| (&w * 0.5 + &x, MultiMetric::new().with("loss", Average::of(w.sum(..)))));
    let mut data = (8usize, |i: usize| Ok(array(i as f32))).stream();
    let trainer = Trainer::new(4).quiet().log_every(2).checkpoints(&mut checkpoints);
    let _ = trainer.run(zeros([2]), &mut data, |w, x| step.call((w, x)))?;
    config::warn("a line", "a fix");
    let counts = ["span step", "span input", "span dispatch", "span save", "INFO saved", "INFO numbers"]
        .map(|text| events.count(text));
    assert_eq!(counts, [4, 4, 4, 2, 2, 2], "{:?}", events.0);
    assert!(events.count("span compile") > 0, "{:?}", events.0);
    assert_eq!(events.count("WARN a line"), 1, "{:?}", events.0);
    Ok(())
}
