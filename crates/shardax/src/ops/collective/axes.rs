//! The named axes of a collective: its participants, and their groups.

use smallvec::{SmallVec, smallvec};

use super::reduce::{CastTo, Pcast};
use crate::core::array::Array;
use crate::core::lower::Lowering;
use crate::core::primitive::{BatchAxis, Primitive};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::error::{Result, err};
use crate::shape::{AxisName, AxisSet};
use crate::sharding::Mesh;
use crate::sharding::axis_env::{self, AxisKind};
use crate::sharding::no_collectives;

pub(crate) type Names = SmallVec<[AxisName; 2]>;

/// The axes that a collective works over, as bound where it is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Axes {
    pub names: Names,
    /// The number of participants, or of those in a group; 0 if groups differ in size.
    pub size: usize,
    /// `true` if types track the values that vary over them.
    pub checked: bool,
    /// The mesh axes among them: the others are mapped by `vmap`.
    pub manual: AxisSet,
    /// The groups that communication stays within; `None` for all participants.
    pub groups: Option<Vec<Vec<usize>>>,
}

impl Axes {
    /// These mesh axes, without groups; their size does not matter to a sum.
    pub fn summed(names: Names, checked: bool) -> Axes {
        let manual = names.iter().copied().collect();
        Axes { names, size: 0, checked, manual, groups: None }
    }

    /// Splits the axes into groups, which must contain every index once.
    pub fn with_groups(mut self, groups: Option<Vec<Vec<usize>>>) -> Result<Axes> {
        let Some(groups) = groups else { return Ok(self) };
        let mut all: Vec<usize> = groups.iter().flatten().copied().collect();
        all.sort_unstable();
        if !all.iter().copied().eq(0..self.size) {
            return Err(err!(
                Value,
                "axis_index_groups must cover all indices exactly once: {groups:?} for an axis of size {}",
                self.size
            )
            .help("name every index from 0 to the size of the axis in one group"));
        }
        let first = groups.first().map_or(0, Vec::len);
        self.size = if groups.iter().all(|g| g.len() == first) { first } else { 0 };
        self.groups = Some(groups);
        Ok(self)
    }

    /// These axes; fails where [`no_collectives`](crate::no_collectives) forbids one.
    pub fn allowed(self, operation: &str) -> Result<Axes> {
        no_collectives::check_names(&self.names, operation)?;
        Ok(self)
    }

    /// The size of every group; fails if they differ, for `operation`.
    pub fn even_size(&self, operation: &str) -> Result<usize> {
        match self.size {
            0 => Err(err!(Value, "{operation} needs axis_index_groups of one size, got {:?}", self.groups)
                .help("give all groups as many members: the shape of the result depends on it")),
            n => Ok(n),
        }
    }

    /// Fails if the axes are split into groups.
    pub fn no_groups(&self, operation: &str) -> Result<()> {
        match &self.groups {
            None => Ok(()),
            Some(groups) => Err(err!(Value, "{operation} takes no axis_index_groups, got {groups:?}")
                .help("name the axis alone; indices are those along the whole axis")),
        }
    }

    /// The groups of participants, as positions in the mesh.
    pub fn mesh_groups(&self, mesh: &Mesh) -> Vec<Vec<usize>> {
        let whole = mesh.groups(&self.names);
        match &self.groups {
            None => whole,
            Some(groups) => {
                whole.iter().flat_map(|w| groups.iter().map(|g| g.iter().map(|&i| w[i]).collect())).collect()
            }
        }
    }

    /// Looks the names up; `operation` is for the error of a name that is not bound.
    pub fn bound(names: &[AxisName], operation: &str) -> Result<Axes> {
        let mut axes = Axes { names: Names::new(), size: 1, checked: false, manual: AxisSet::default(), groups: None };
        for &name in names {
            let found = axis_env::lookup(name, operation)?;
            if axes.names.contains(&name) {
                return Err(err!(Value, "{operation} got the axis {name:?} twice").help("name each axis once"));
            }
            axes.names.push(name);
            axes.size *= found.size;
            if let AxisKind::Manual { checked, .. } = found.kind {
                axes.manual.insert(name);
                axes.checked |= checked;
            }
        }
        Ok(axes)
    }

    /// Applies a collective over these axes; if types are checked, the operand is cast to vary over them.
    #[track_caller]
    pub fn bind(&self, collective: impl Primitive + 'static, x: &Array) -> Array {
        let x = if self.checked { x.varying_over(&self.set()) } else { x.clone() };
        bind1(collective, &[x])
    }

    /// Applies a sum over these axes. An operand that is unreduced over some of them holds addends along these and is not
    /// cast.
    #[track_caller]
    pub fn bind_sum(&self, collective: impl Primitive + 'static, x: &Array) -> Array {
        let x = if self.checked { x.varying_over(&self.set().minus(&unreduced(x))) } else { x.clone() };
        bind1(collective, &[x])
    }

    /// The cotangent of an operand of a sum over these axes: that of the sum, varying, or reduced where the operand is
    /// unreduced.
    #[track_caller]
    pub fn spread(&self, ct: &Array, operand: &Aval) -> Array {
        let addends = operand.sharding().map_or_else(AxisSet::default, |typed| typed.unreduced().clone());
        let reduced: Names = self.set().iter().filter(|name| addends.contains(*name)).collect();
        let ct = ct.varying_over(&ct.vma().union(&self.set().minus(&addends)));
        if reduced.is_empty() { ct } else { Pcast { axes: reduced, to: CastTo::Reduced }.apply(&ct) }
    }

    /// The axes over which the participants' values may differ from device to device.
    pub fn set(&self) -> AxisSet {
        self.manual.clone()
    }

    /// The axes mapped by `vmap`, which types do not track.
    pub(super) fn mapped(&self) -> Option<Axes> {
        let names: Names = self.names.iter().copied().filter(|n| !self.manual.contains(*n)).collect();
        (!names.is_empty()).then(|| Axes { names, checked: false, manual: AxisSet::default(), ..self.clone() })
    }

    /// The axes without one, which is handled separately; `None` if none is left.
    pub fn without(&self, axis: &BatchAxis) -> Option<Axes> {
        let names: Names = self.names.iter().copied().filter(|n| Some(*n) != axis.name).collect();
        (!names.is_empty()).then(|| Axes { names, size: self.size / axis.size, ..self.clone() })
    }

    /// The axes one by one; the mapped one is no longer bound.
    pub fn each(&self, mapped: &BatchAxis) -> Result<Vec<Axes>> {
        let one = |&name: &AxisName| {
            let manual: AxisSet = self.manual.iter().filter(|n| *n == name).collect();
            Ok(Axes {
                size: if mapped.name == Some(name) { mapped.size } else { axis_env::lookup(name, "it")?.size },
                checked: self.checked && !manual.is_empty(),
                names: smallvec![name],
                manual,
                groups: None,
            })
        };
        self.names.iter().map(one).collect()
    }

    pub fn has(&self, name: Option<AxisName>) -> bool {
        name.is_some_and(|n| self.names.contains(&n))
    }

    /// The groups of participants and a channel, as attributes.
    pub(super) fn attrs(&self, cx: &mut Lowering, group_attr: &str) -> Result<String> {
        let groups = self.mesh_groups(&mesh(cx)?);
        Ok(format!("{}, {}", channel(cx), groups_text(group_attr, &groups)))
    }

    pub fn print(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|n| n.as_str()).collect();
        let groups = self.groups.as_ref().map(|g| format!(" groups={g:?}")).unwrap_or_default();
        format!("axes=({}){groups}", names.join(","))
    }
}

/// The unreduced axes in the type of a value.
pub(super) fn unreduced(x: &Array) -> AxisSet {
    x.aval_ref().and_then(Aval::sharding).map_or_else(AxisSet::default, |typed| typed.unreduced().clone())
}

pub(crate) fn mesh(cx: &Lowering) -> Result<Mesh> {
    cx.manual_mesh.clone().ok_or_else(|| err!(Runtime, "a collective was lowered outside of shard_map"))
}

pub(crate) fn channel(cx: &mut Lowering) -> String {
    format!("channel_handle = #stablehlo.channel_handle<handle = {}, type = 1>", cx.channel())
}

/// `replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>`
pub(crate) fn groups_text(attr: &str, groups: &[Vec<usize>]) -> String {
    // Rows of equal length: shorter groups are padded with -1.
    let width = groups.iter().map(Vec::len).max().unwrap_or(0);
    let rows: Vec<String> = groups
        .iter()
        .map(|g| {
            let padded = g.iter().map(|p| p.to_string()).chain(std::iter::repeat_n("-1".to_owned(), width - g.len()));
            format!("[{}]", padded.collect::<Vec<_>>().join(", "))
        })
        .collect();
    format!("{attr} = dense<[{}]> : tensor<{}x{width}xi64>", rows.join(", "), groups.len())
}
