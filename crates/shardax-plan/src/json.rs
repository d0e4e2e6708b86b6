//! Reports as JSON.

use serde_json::{Value, json};

use crate::roofline::ASSUMPTIONS;
use crate::{Advice, Candidate, Found, Report};

impl Report {
    /// Returns the report as JSON, in bytes, seconds and operations.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax_plan::{Plan, Target};
    /// let target = Target::new("cpu:1")?;
    /// let report = Plan::new(|x: Array| x.dot(&x), shape_dtype_struct([8, 8], DType::F32))?.report(&target)?;
    /// let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    /// assert_eq!(json["flops"]["products"], 1024.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn to_json(&self) -> String {
        format!("{:#}\n", self.json())
    }

    fn json(&self) -> Value {
        let memory: serde_json::Map<String, Value> =
            self.memory.by.iter().map(|(holder, bytes)| (holder.to_string(), json!(bytes))).collect();
        // Keys are part of the format: programs read them.
        let roofline = self.roofline.as_ref().map(|r| {
            json!({
                "compute": r.compute, "memory": r.memory, "communication": r.communication, "exposed": r.exposed,
                "step": r.step, "mfu": r.mfu, "hfu": r.hfu, "assumptions": ASSUMPTIONS, "source": self.source,
            })
        });
        json!({
            "step": self.step,
            "target": self.target,
            "devices": self.devices,
            "mesh": self.mesh.iter().map(|(name, size)| json!({"axis": name, "size": size})).collect::<Vec<_>>(),
            "compiler": self.compiler,
            "notes": self.notes,
            "flops": {
                "products": self.flops.matmuls, "recomputed": self.flops.recomputed,
                "elementwise": self.flops.elementwise, "products_per_device": self.matmul_flops_per_device, "unbounded_loops": self.flops.unbounded_loops,
            },
            "bytes_accessed": self.bytes_accessed,
            "memory": {
                "held": memory, "total": self.memory.total(), "limit": self.memory.limit, "fits": self.memory.fits(),
                "donated": self.memory.donated, "aliased": self.memory.aliased,
                "helps": self.helps.iter().map(advice_json).collect::<Vec<_>>(),
            },
            "collectives": self.traffic.iter().map(traffic_json).collect::<Vec<_>>(),
            "roofline": roofline,
        })
    }
}

fn advice_json(advice: &Advice) -> Value {
    json!({"what": advice.what, "needs": advice.needs, "compiled": advice.compiled})
}

fn traffic_json(t: &crate::Traffic) -> Value {
    json!({
        "axes": t.axes, "kind": t.kind.to_string(), "participants": t.participants, "runs": t.runs,
        "bytes": t.bytes, "sent": t.sent, "link": t.link.to_string(), "seconds": t.seconds,
        "at_least": t.at_least, "count": t.count, "asynchronous": t.asynchronous, "hidden": t.hidden,
    })
}

fn candidate_json(c: &Candidate) -> Value {
    let axes = c.setup.axes.iter().map(|(name, size)| json!({"axis": name.to_string(), "size": size}));
    let rules = c.rules.iter().map(|(name, axes)| json!({"name": name, "axes": axes}));
    json!({
        "options": c.options(), "mesh": axes.collect::<Vec<_>>(), "rules": rules.collect::<Vec<_>>(),
        "program": c.program(), "remat": c.setup.remat.name(), "micro_batch": c.setup.micro_batch,
        "on_frontier": c.on_frontier, "theory": {"memory": c.memory, "sent": c.sent, "step": c.step},
        "report": c.report.json(),
    })
}

impl Found {
    /// Returns the search as JSON: each compiled setup, sorted by time per row, with its mesh, its rules, the lines of
    /// a program that make them, the estimate and the compiler's figures; and the setups that failed, with reasons.
    pub fn to_json(&self) -> String {
        let result = json!({
            "tried": self.tried, "too_large": self.too_large, "idle_axes": self.idle,
            "failed": self.failed.iter().map(|(what, why)| json!({"what": what, "why": why})).collect::<Vec<_>>(),
            "candidates": self.compiled.iter().map(candidate_json).collect::<Vec<_>>(),
        });
        format!("{result:#}\n")
    }
}
