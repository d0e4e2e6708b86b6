//! A planned step: properties that do not depend on the devices, and its compilation for devices.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use shardax::function::{Function, IntoArgs};
use shardax::prelude::*;
use shardax::program::Flops;
use shardax::sharding::Sharding;
use shardax::stages::{ArgInfo, Collective, LeafTree, MemoryAnalysis};
use shardax::{Compiled, CrossCompiled, Lowered};

use crate::memory::{Holder, holder_of};
use crate::report::Report;
use crate::target::Target;

/// An argument of the compiled step.
#[derive(Clone, Debug)]
pub(crate) struct Argument {
    pub path: String,
    /// The bytes on one device; 0 for an argument that the program does not use.
    pub bytes: f64,
    /// The bytes of the entire array.
    pub unsharded: f64,
    pub donated: bool,
}

/// The compiler's figures for a step.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub mesh: Option<Mesh>,
    pub arguments: Vec<Argument>,
    pub memory: MemoryAnalysis,
    pub collectives: Vec<Collective>,
    /// The matmul FLOPs on one device, as far as the compiled program shows them.
    pub matmul_flops: f64,
    pub bytes_accessed: f64,
    /// The compiler.
    pub by: String,
}

type Compile = Arc<dyn Fn(&Target) -> Result<Facts> + Send + Sync>;

/// A step to plan, with the types and shardings of its arguments.
///
/// ```
/// use shardax::prelude::*;
/// use shardax_plan::{Holder, Plan, Target};
///
/// let target = Target::new("cpu:8")?;
/// target.prepare()?;
/// let mesh = target.mesh([("data", 8)])?;
/// let rows = NamedSharding::new(&mesh, P!["data"]);
/// let replicated = NamedSharding::new(&mesh, P![]);
/// let step = |w: Array, x: Array| -> Result<Array> {
///     let loss = |w: Array| x.dot(&w).square().mean(..);
///     Ok(&w - grad(loss).call(&w)? * 0.1)
/// };
/// let w = shape_dtype_struct_on([64, 64], DType::F32, &replicated);
/// let x = shape_dtype_struct_on([128, 64], DType::F32, &rows);
/// let report = Plan::new(step, (w, x))?.holds(Holder::Parameters, "[0]").report(&target)?;
/// assert_eq!(report.memory.bytes(Holder::Parameters), 64.0 * 64.0 * 4.0);
/// assert_eq!(report.traffic[0].kind, CollectiveKind::AllReduce);
/// println!("{report}");
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone)]
pub struct Plan {
    name: String,
    pub(crate) flops: Flops,
    pub(crate) holders: Vec<(Holder, String)>,
    pub(crate) rules: Vec<(String, Vec<String>)>,
    arguments: Vec<Argument>,
    /// The axes that occur in shardings.
    axes: BTreeSet<String>,
    compile: Compile,
}

impl Plan {
    /// Creates a plan for a function and arguments of these types and shardings ([`shape_dtype_struct_on`]). The
    /// arguments need no values, so you can plan models that do not fit in this machine's memory.
    ///
    /// # Errors
    /// Returns an error if the step cannot be traced or lowered for them, so that you can try another setup.
    #[track_caller]
    pub fn new<Args, F, A>(step: F, args: A) -> Result<Plan>
    where
        Args: Tree + 'static,
        F: Function<Args>,
        F::Output: 'static,
        A: IntoArgs<Args>,
    {
        Plan::from_lowered(jit(step).lower(args)?)
    }

    /// Creates a plan for a step that you lowered yourself, with its donations and result shardings.
    ///
    /// # Errors
    /// Returns an error if the arguments are not divisible by their shardings.
    #[track_caller]
    pub fn from_lowered<Args: Tree + 'static, Out: Tree + 'static>(lowered: Lowered<Args, Out>) -> Result<Plan> {
        let name = lowered.name().to_owned();
        let flops = lowered.program().flops();
        let arguments = arguments(&lowered.args_info(), &lowered.input_shardings())?;
        let axes = axes_of_shardings(lowered.as_text());
        // A closure, because the types of arguments and results would otherwise be parameters of `Plan`.
        let compile: Compile = Arc::new(move |target: &Target| match target.topology() {
            Some(topology) => facts_of_cross_compiled(&lowered.compile_for(topology)?),
            None => facts_of_compiled(&lowered.compile()?),
        });
        let (holders, rules) = (Vec::new(), Vec::new());
        Ok(Plan { name, flops, holders, rules, arguments, axes, compile })
    }

    /// Sets the purpose of the arguments whose key paths begin with `path` (`[0].model`); the first match counts. You
    /// should call it if your state has other names, because otherwise the report assigns its memory to the wrong
    /// purpose. By default, arguments with `opt_state` in their paths are optimizer state, arguments with `model` or
    /// `params` are parameters, other donated arguments are optimizer state, and all others are the batch.
    pub fn holds(mut self, holder: Holder, path: &str) -> Plan {
        self.holders.push((holder, path.to_owned()));
        self
    }

    /// Sets the rules of the step's shardings: the axes that split each logical name, if the mesh has them. A search
    /// prints them, so that you can copy them into your program.
    pub fn rules(mut self, rules: &[(&str, &[&str])]) -> Plan {
        let rules =
            rules.iter().map(|(name, axes)| ((*name).to_owned(), axes.iter().map(|axis| (*axis).to_owned()).collect()));
        self.rules = rules.collect();
        self
    }

    /// The bytes of the arguments on one device, of all arguments or only for one purpose.
    pub(crate) fn argument_bytes(&self, holder: Option<Holder>) -> f64 {
        let arguments = self.arguments.iter();
        arguments.filter(|a| holder.is_none_or(|holder| holder_of(self, a) == holder)).map(|a| a.bytes).sum()
    }

    /// Returns true if each device has all parameters.
    pub(crate) fn has_replicated_parameters(&self) -> bool {
        let mut parameters =
            self.arguments.iter().filter(|a| a.bytes > 0.0 && holder_of(self, a) == Holder::Parameters);
        parameters.all(|a| a.bytes >= a.unsharded)
    }

    /// Returns true if an argument, a result, or an intermediate value is split along this axis.
    pub(crate) fn splits_along(&self, axis: &str) -> bool {
        self.axes.contains(axis)
    }

    /// Sets the name.
    pub fn named(self, name: &str) -> Plan {
        Plan { name: name.to_owned(), ..self }
    }

    /// Returns the name, by default the function's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the floating-point operations of one step on all devices together.
    pub fn flops(&self) -> &Flops {
        &self.flops
    }

    /// Compiles the step for these devices and reports. You must have lowered it for a mesh of these devices
    /// ([`Target::mesh`]).
    ///
    /// # Errors
    /// Returns an error if it cannot be compiled; on a TPU also if it does not fit into memory.
    #[track_caller]
    pub fn report(&self, target: &Target) -> Result<Report> {
        Ok(Report::new(self, target, (self.compile)(target)?))
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plan({}, {})", self.name, self.flops)
    }
}

fn arguments(info: &LeafTree<ArgInfo>, shardings: &LeafTree<Option<Sharding>>) -> Result<Vec<Argument>> {
    let arguments = info.iter().zip(shardings.leaves()).map(|((path, info), sharding)| {
        let bytes = match sharding {
            Some(sharding) => {
                let part = sharding.shard_shape(info.shape())?;
                part.iter().map(|&n| n as f64).product::<f64>() * info.dtype().byte_size() as f64
            }
            None => 0.0,
        };
        let unsharded = (info.shape().iter().product::<usize>() * info.dtype().byte_size()) as f64;
        Ok(Argument { path, bytes, unsharded, donated: info.donated })
    });
    arguments.collect()
}

/// The axis names by which the shardings in a program's text split something. Axes that a manual computation only
/// lists, or along which an operand is replicated, do not count.
fn axes_of_shardings(text: &str) -> BTreeSet<String> {
    let mut axes = BTreeSet::new();
    for line in text.lines().filter(|line| line.contains("#sdy")) {
        let mut only_listed = false;
        // Every other part is in quotes. Other quoted words are not names of axes.
        for (index, part) in line.split('"').enumerate() {
            if index % 2 == 1 {
                axes.extend((!only_listed).then(|| part.to_owned()));
            } else if let Some(last) = part.rfind(['{', '}']) {
                only_listed = ["manual_axes{", "replicated={"].iter().any(|list| part[..=last].ends_with(list));
            }
        }
    }
    axes
}

fn facts_of_compiled<Args: Tree, Out: Tree>(compiled: &Compiled<Args, Out>) -> Result<Facts> {
    Ok(Facts {
        mesh: compiled.mesh().cloned(),
        arguments: arguments(&compiled.args_info(), &compiled.input_shardings())?,
        memory: compiled.memory_analysis()?,
        collectives: compiled.collectives()?.to_vec(),
        matmul_flops: compiled.matmul_flops()?,
        bytes_accessed: compiled.bytes_accessed()? as f64,
        by: "XLA's CPU compiler".to_owned(),
    })
}

fn facts_of_cross_compiled<Args: Tree, Out: Tree>(compiled: &CrossCompiled<Args, Out>) -> Result<Facts> {
    let platform = compiled.mesh().map_or("platform".to_owned(), |mesh| mesh.devices()[0].platform().to_owned());
    Ok(Facts {
        mesh: compiled.mesh().cloned(),
        arguments: arguments(&compiled.args_info(), &compiled.input_shardings())?,
        memory: compiled.memory_analysis()?,
        collectives: compiled.collectives()?.to_vec(),
        matmul_flops: compiled.matmul_flops()?,
        bytes_accessed: compiled.bytes_accessed()? as f64,
        by: format!("XLA's {platform} compiler"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_a_manual_computation_lists_split_nothing() {
        let text = r#"%1 = "sdy.manual_computation"(%0) ({}) {in_shardings = #sdy.sharding_per_value<[<@mesh,
            [{"data", "fsdp"}, {}], replicated={"expert", "model"}>]>, manual_axes = #sdy<manual_axes{"data", "expert",
            "fsdp", "model"}>, out_shardings = #sdy.sharding_per_value<[<@mesh, [{"heads"}]>]>}"#;
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let axes = ["data", "fsdp", "heads", "sdy.manual_computation"].map(str::to_owned);
        assert_eq!(axes_of_shardings(&line), BTreeSet::from(axes));
    }
}
