//! The table of a step's collectives.

use std::collections::BTreeMap;

use shardax::prelude::*;

use super::{bytes_text, table};

/// A table of a step's collectives, the largest first, with the totals of each kind and of all.
pub(super) fn section(all: &[Collective]) -> String {
    let heading = "<h2>Communication in a step</h2>".to_owned();
    if all.is_empty() {
        return heading + "<p>The devices tell each other nothing.</p>";
    }
    let moved = |c: &Collective| c.bytes.saturating_mul(c.runs.unwrap_or(c.count));
    let mut sorted: Vec<&Collective> = all.iter().collect();
    sorted.sort_by_key(|c| std::cmp::Reverse(moved(c)));
    // A loop with an unknown number of iterations counts once.
    let text = |bytes: usize, known: bool| format!("{}{}", if known { "" } else { "≥ " }, bytes_text(bytes));
    let row = |c: &&Collective| {
        let axes: Vec<String> = c.axes.iter().map(|axis| axis.to_string()).collect();
        let runs = c.runs.map_or("not known".to_owned(), |runs| runs.to_string());
        let total = text(moved(c), c.runs.is_some());
        let devices = c.participants.to_string();
        vec![c.kind.to_string(), axes.join(", "), devices, c.count.to_string(), runs, bytes_text(c.bytes), total]
    };
    let total = |name: String, of: &[&Collective]| {
        let known = of.iter().all(|c| c.runs.is_some());
        let count: usize = of.iter().map(|c| c.count).sum();
        let runs = of.iter().map(|c| c.runs.unwrap_or(c.count)).fold(0, usize::saturating_add);
        let bytes = of.iter().map(|c| moved(c)).fold(0, usize::saturating_add);
        let runs = format!("{}{runs}", if known { "" } else { "≥ " });
        vec![name, String::new(), String::new(), count.to_string(), runs, String::new(), text(bytes, known)]
    };
    let mut kinds: BTreeMap<String, Vec<&Collective>> = BTreeMap::new();
    for c in &sorted {
        kinds.entry(c.kind.to_string()).or_default().push(c);
    }
    let mut totals: Vec<Vec<String>> = Vec::new();
    if kinds.len() > 1 {
        totals.extend(kinds.into_iter().map(|(kind, of)| total(format!("every {kind}"), &of)));
    }
    totals.push(total("total".to_owned(), &sorted));
    let header =
        ["collective", "over", "devices", "in the program", "runs in a step", "bytes on a device", "in a step"];
    heading + &table(&header, 2, &sorted.iter().map(row).collect::<Vec<_>>(), &totals)
}
