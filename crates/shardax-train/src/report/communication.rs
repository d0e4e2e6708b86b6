//! The table of a step's collectives.

use std::collections::BTreeMap;

use shardax::prelude::*;

use super::{bytes_text, table};

/// A table of a step's collectives, the largest first, with the totals of each kind and of all.
pub(super) fn section(all: &[Collective]) -> String {
    let heading = "<h2>Communication in a step</h2>".to_owned();
    if all.is_empty() {
        return heading + "<p>The devices do not communicate.</p>";
    }
    let mut sorted: Vec<&Collective> = all.iter().collect();
    sorted.sort_by_key(|c| std::cmp::Reverse(bytes_per_step(c)));
    let mut kinds: BTreeMap<String, Vec<&Collective>> = BTreeMap::new();
    for c in &sorted {
        kinds.entry(c.kind.to_string()).or_default().push(c);
    }
    let mut totals: Vec<Vec<String>> = Vec::new();
    if kinds.len() > 1 {
        totals.extend(kinds.into_iter().map(|(kind, collectives)| total_row(format!("every {kind}"), &collectives)));
    }
    totals.push(total_row("total".to_owned(), &sorted));
    let header =
        ["collective", "over", "devices", "in the program", "runs in a step", "bytes on a device", "in a step"];
    heading + &table(&header, 2, &sorted.iter().map(|c| row(c)).collect::<Vec<_>>(), &totals)
}

/// The bytes that a collective moves in a step. A loop with an unknown number of iterations counts once.
fn bytes_per_step(c: &Collective) -> usize {
    c.bytes.saturating_mul(c.runs.unwrap_or(c.count))
}

/// The mark of a lower bound, for collectives in loops with an unknown number of iterations.
fn bound_mark(known: bool) -> &'static str {
    if known { "" } else { "≥ " }
}

fn row(c: &Collective) -> Vec<String> {
    let axes: Vec<String> = c.axes.iter().map(|axis| axis.to_string()).collect();
    let runs = c.runs.map_or("not known".to_owned(), |runs| runs.to_string());
    let total = format!("{}{}", bound_mark(c.runs.is_some()), bytes_text(bytes_per_step(c)));
    let devices = c.participants.to_string();
    vec![c.kind.to_string(), axes.join(", "), devices, c.count.to_string(), runs, bytes_text(c.bytes), total]
}

/// A row with the totals of some collectives.
fn total_row(name: String, collectives: &[&Collective]) -> Vec<String> {
    let mark = bound_mark(collectives.iter().all(|c| c.runs.is_some()));
    let count: usize = collectives.iter().map(|c| c.count).sum();
    let runs = collectives.iter().map(|c| c.runs.unwrap_or(c.count)).fold(0, usize::saturating_add);
    let bytes = collectives.iter().map(|c| bytes_per_step(c)).fold(0, usize::saturating_add);
    let (runs, bytes) = (format!("{mark}{runs}"), format!("{mark}{}", bytes_text(bytes)));
    vec![name, String::new(), String::new(), count.to_string(), runs, String::new(), bytes]
}
