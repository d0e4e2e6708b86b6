//! What a planner is asked to set a step up for.

use std::collections::BTreeMap;

use shardax::prelude::*;
use shardax::shape::AxisName;
use shardax::sharding::{DimSpec, IntoDimSpec};
use shardax_nn::Rules;

use crate::target::Target;

/// What is kept of a layer for its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Remat {
    /// All that the gradient needs.
    None,
    /// The results of products without batch dimensions.
    Dots,
    /// Nothing but what goes from layer to layer.
    Full,
}

impl Remat {
    /// All, from that which keeps most.
    pub const ALL: [Remat; 3] = [Remat::None, Remat::Dots, Remat::Full];

    /// The policy for `checkpoint`; `None` where it is not used.
    pub fn policy(self) -> Option<CheckpointPolicy> {
        match self {
            Remat::None => None,
            Remat::Dots => Some(CheckpointPolicy::DotsWithNoBatchDimsSaveable),
            Remat::Full => Some(CheckpointPolicy::NothingSaveable),
        }
    }

    /// `none`, `dots`, `full`.
    pub fn name(self) -> &'static str {
        match self {
            Remat::None => "none",
            Remat::Dots => "dots",
            Remat::Full => "full",
        }
    }
}

/// The devices, the mesh, and the choices that a step is set up with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The devices.
    pub target: Target,
    /// The axes of the mesh, major first.
    pub axes: Vec<(AxisName, usize)>,
    /// What layers keep.
    pub remat: Remat,
    /// How many sequences, images or rows all devices take at once; `None` leaves it to the step.
    pub micro_batch: Option<usize>,
    /// Whatever else the step knows: `--set name=value`.
    pub options: BTreeMap<String, String>,
}

impl Setup {
    /// All devices along one axis, `data`, and all else as it is by default: layers keep nothing.
    pub fn new(target: Target) -> Setup {
        let axes = vec![(AxisName::from("data"), target.num_devices())];
        Setup { target, axes, remat: Remat::Full, micro_batch: None, options: BTreeMap::new() }
    }

    /// The mesh of the target's devices.
    ///
    /// Fails when the axes do not multiply to their number.
    #[track_caller]
    pub fn mesh(&self) -> Result<Mesh> {
        self.target.mesh(self.axes.clone())
    }

    /// The size of an axis; 1 of one that the mesh does not have.
    pub fn axis(&self, name: &str) -> usize {
        let name = AxisName::from(name);
        self.axes.iter().find(|(axis, _)| *axis == name).map_or(1, |(_, size)| *size)
    }

    /// Rules over the mesh: each logical name is split over those of its axes that the mesh has.
    pub fn rules(&self, mesh: &Mesh, rules: &[(&'static str, &[&'static str])]) -> Rules {
        let along = |axes: &[&'static str]| {
            let named = axes.iter().map(|name| AxisName::from(*name));
            let there: Vec<AxisName> = named.filter(|name| mesh.axis_size(*name).is_some()).collect();
            if there.is_empty() { DimSpec::None } else { there[..].into_dim_spec() }
        };
        rules.iter().fold(Rules::new(mesh, [("", DimSpec::None)]), |all, (name, axes)| all.and(name, along(axes)))
    }

    /// The number of an option, or what it is by default.
    ///
    /// Fails when it is no number.
    #[track_caller]
    pub fn number(&self, name: &str, default: usize) -> Result<usize> {
        match self.options.get(name) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| {
                crate::error::value(format!("option {name} must be a number, got {text:?}"), "write --set name=number")
            }),
        }
    }
}
