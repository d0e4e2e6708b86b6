//! The setup of a step.

use std::collections::BTreeMap;

use shardax::prelude::*;
use shardax::shape::AxisName;
use shardax::sharding::{DimSpec, IntoDimSpec};
use shardax_nn::Rules;

use crate::target::Target;

/// The residuals that layers store for their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Remat {
    /// All residuals.
    None,
    /// Results of matmuls without batch dimensions.
    Dots,
    /// Only the inputs of layers.
    Full,
}

impl Remat {
    /// All values, from most to least memory.
    pub const ALL: [Remat; 3] = [Remat::None, Remat::Dots, Remat::Full];

    /// Returns the policy that you should pass to `checkpoint`; `None` if layers store all residuals and need no
    /// `checkpoint`.
    pub fn policy(self) -> Option<CheckpointPolicy> {
        match self {
            Remat::None => None,
            Remat::Dots => Some(CheckpointPolicy::DotsWithNoBatchDimsSaveable),
            Remat::Full => Some(CheckpointPolicy::NothingSaveable),
        }
    }

    /// Returns the name: `none`, `dots` or `full`.
    pub fn name(self) -> &'static str {
        match self {
            Remat::None => "none",
            Remat::Dots => "dots",
            Remat::Full => "full",
        }
    }
}

/// The devices, mesh and options of a step.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The devices.
    pub target: Target,
    /// The axes of the mesh, major first.
    pub axes: Vec<(AxisName, usize)>,
    /// The residuals that layers store.
    pub remat: Remat,
    /// The number of sequences, images or rows per step on all devices; `None` for the step's default.
    pub micro_batch: Option<usize>,
    /// Options of the step: `--set name=value`.
    pub options: BTreeMap<String, String>,
}

impl Setup {
    /// Returns all devices along one axis, `data`, with defaults for everything else.
    ///
    /// ```
    /// # use shardax_plan::{Setup, Target};
    /// let mut setup = Setup::new(Target::new("cpu:8")?);
    /// assert_eq!(setup.axis("data"), 8);
    /// setup.axes = vec![("fsdp".into(), 4), ("model".into(), 2)];
    /// assert_eq!((setup.axis("fsdp"), setup.axis("data")), (4, 1));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn new(target: Target) -> Setup {
        let axes = vec![(AxisName::from("data"), target.num_devices())];
        Setup { target, axes, remat: Remat::Full, micro_batch: None, options: BTreeMap::new() }
    }

    /// Returns the mesh of the target's devices.
    ///
    /// # Errors
    /// Returns an error if the sizes of the axes do not multiply to their number.
    #[track_caller]
    pub fn mesh(&self) -> Result<Mesh> {
        self.target.mesh(self.axes.clone())
    }

    /// Returns the size of an axis; 1 if the mesh does not have it.
    pub fn axis(&self, name: &str) -> usize {
        let name = AxisName::from(name);
        self.axes.iter().find(|(axis, _)| *axis == name).map_or(1, |(_, size)| *size)
    }

    /// Rules over the mesh. Each logical name is split over its axes, as far as the mesh has them.
    pub fn rules(&self, mesh: &Mesh, rules: &[(&'static str, &[&'static str])]) -> Rules {
        let mut combined = Rules::new(mesh, [("", DimSpec::None)]);
        for (name, axes) in rules {
            let axes = axes.iter().map(|axis| AxisName::from(*axis));
            let present: Vec<AxisName> = axes.filter(|axis| mesh.axis_size(*axis).is_some()).collect();
            let spec = if present.is_empty() { DimSpec::None } else { present[..].into_dim_spec() };
            combined = combined.and(name, spec);
        }
        combined
    }

    /// Returns the value of a numeric option, or its default.
    ///
    /// # Errors
    /// Returns an error if the value is not a number.
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
