//! The named axes of a collective, with their participants and groups.

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

/// The named axes that a collective communicates over, as bound at the call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Axes {
    pub names: Names,
    /// The number of participants, or of members in each group; 0 if the groups differ in size.
    pub size: usize,
    /// `true` if types track which axes values vary over.
    pub checked: bool,
    /// The names that are mesh axes. The other names are mapped by `vmap`.
    pub manual: AxisSet,
    /// The groups that communication stays within, or `None` if all participants communicate.
    pub groups: Option<Vec<Vec<usize>>>,
}

impl Axes {
    /// Returns ungrouped mesh axes for a sum. Their size is left at 0 because a sum does not need it.
    pub fn summed(names: Names, checked: bool) -> Axes {
        let manual = names.iter().copied().collect();
        Axes { names, size: 0, checked, manual, groups: None }
    }

    /// Splits the axes into groups, which must contain every index exactly once.
    pub fn with_groups(mut self, groups: Option<Vec<Vec<usize>>>) -> Result<Axes> {
        let Some(groups) = groups else { return Ok(self) };
        let mut indices: Vec<usize> = groups.iter().flatten().copied().collect();
        indices.sort_unstable();
        if !indices.iter().copied().eq(0..self.size) {
            return Err(err!(
                Value,
                "axis_index_groups must cover all indices exactly once: {groups:?} for an axis of size {}",
                self.size
            )
            .help("name every index from 0 to the size of the axis in one group"));
        }
        let group_size = groups.first().map_or(0, Vec::len);
        self.size = if groups.iter().all(|g| g.len() == group_size) { group_size } else { 0 };
        self.groups = Some(groups);
        Ok(self)
    }

    /// Returns these axes, or an error if [`no_collectives`](crate::no_collectives) forbids collectives over one of
    /// them.
    pub fn allowed(self, operation: &str) -> Result<Axes> {
        no_collectives::check_names(&self.names, operation)?;
        Ok(self)
    }

    /// Returns the size of every group, or an error that names `operation` if the groups differ in size.
    pub fn even_size(&self, operation: &str) -> Result<usize> {
        match self.size {
            0 => Err(err!(Value, "{operation} needs axis_index_groups of one size, got {:?}", self.groups)
                .help("use groups of equal size, because the shape of the result depends on it")),
            n => Ok(n),
        }
    }

    /// Returns an error if the axes are split into groups.
    pub fn no_groups(&self, operation: &str) -> Result<()> {
        match &self.groups {
            None => Ok(()),
            Some(groups) => Err(err!(Value, "{operation} takes no axis_index_groups, got {groups:?}")
                .help("pass only the name of the axis; the indices run along the entire axis")),
        }
    }

    /// Returns the groups of participants, as positions in the mesh.
    pub fn mesh_groups(&self, mesh: &Mesh) -> Vec<Vec<usize>> {
        let axis_groups = mesh.groups(&self.names);
        match &self.groups {
            None => axis_groups,
            Some(groups) => axis_groups
                .iter()
                .flat_map(|members: &Vec<usize>| {
                    groups.iter().map(|group| group.iter().map(|&i| members[i]).collect()).collect::<Vec<_>>()
                })
                .collect(),
        }
    }

    /// Looks up the names. `operation` appears in the error for a name that is not bound.
    pub fn bound(names: &[AxisName], operation: &str) -> Result<Axes> {
        let mut axes = Axes { names: Names::new(), size: 1, checked: false, manual: AxisSet::default(), groups: None };
        for &name in names {
            let axis = axis_env::lookup(name, operation)?;
            if axes.names.contains(&name) {
                return Err(err!(Value, "{operation} got the axis {name:?} twice").help("name each axis only once"));
            }
            axes.names.push(name);
            axes.size *= axis.size;
            if let AxisKind::Manual { checked, .. } = axis.kind {
                axes.manual.insert(name);
                axes.checked |= checked;
            }
        }
        Ok(axes)
    }

    /// Applies a collective over these axes. If types are checked, the operand is first cast to vary over the axes.
    #[track_caller]
    pub fn bind(&self, collective: impl Primitive + 'static, x: &Array) -> Array {
        let x = if self.checked { x.varying_over(&self.set()) } else { x.clone() };
        bind1(collective, &[x])
    }

    /// Applies a sum over these axes. The operand is not cast along its unreduced axes, because it already holds
    /// addends there.
    #[track_caller]
    pub fn bind_sum(&self, collective: impl Primitive + 'static, x: &Array) -> Array {
        let x = if self.checked { x.varying_over(&self.set().minus(&unreduced(x))) } else { x.clone() };
        bind1(collective, &[x])
    }

    /// Converts the cotangent of a sum over these axes to the cotangent of the operand: reduced over the axes along
    /// which the operand is unreduced, varying over the others.
    #[track_caller]
    pub fn spread(&self, ct: &Array, operand: &Aval) -> Array {
        let addends = operand.sharding().map_or_else(AxisSet::default, |typed| typed.unreduced().clone());
        let reduced: Names = self.set().iter().filter(|name| addends.contains(*name)).collect();
        let ct = ct.varying_over(&ct.vma().union(&self.set().minus(&addends)));
        if reduced.is_empty() { ct } else { Pcast { axes: reduced, to: CastTo::Reduced }.apply(&ct) }
    }

    /// Returns the axes over which values can differ between devices.
    pub fn set(&self) -> AxisSet {
        self.manual.clone()
    }

    /// Returns the axes that `vmap` maps, which types do not track.
    pub(super) fn mapped(&self) -> Option<Axes> {
        let names: Names = self.names.iter().copied().filter(|n| !self.manual.contains(*n)).collect();
        (!names.is_empty()).then(|| Axes { names, checked: false, manual: AxisSet::default(), ..self.clone() })
    }

    /// Removes an axis that the caller handles separately. Returns `None` if no axis remains.
    pub fn without(&self, axis: &BatchAxis) -> Option<Axes> {
        let names: Names = self.names.iter().copied().filter(|n| Some(*n) != axis.name).collect();
        (!names.is_empty()).then(|| Axes { names, size: self.size / axis.size, ..self.clone() })
    }

    /// Splits the axes into single axes. The mapped axis is no longer bound, so its size comes from `mapped`.
    pub fn each(&self, mapped: &BatchAxis) -> Result<Vec<Axes>> {
        let axes = self.names.iter().map(|&name| {
            let manual: AxisSet = self.manual.iter().filter(|n| *n == name).collect();
            Ok(Axes {
                size: if mapped.name == Some(name) { mapped.size } else { axis_env::lookup(name, "it")?.size },
                checked: self.checked && !manual.is_empty(),
                names: smallvec![name],
                manual,
                groups: None,
            })
        });
        axes.collect()
    }

    pub fn has(&self, name: Option<AxisName>) -> bool {
        name.is_some_and(|n| self.names.contains(&n))
    }

    /// Formats the groups of participants and a new channel as attributes.
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

/// Returns the unreduced axes of a value's type.
pub(super) fn unreduced(x: &Array) -> AxisSet {
    x.aval_ref().and_then(Aval::sharding).map_or_else(AxisSet::default, |typed| typed.unreduced().clone())
}

pub(crate) fn mesh(cx: &Lowering) -> Result<Mesh> {
    cx.manual_mesh.clone().ok_or_else(|| {
        err!(Runtime, "internal error: a collective was lowered outside of shard_map; please report this")
    })
}

pub(crate) fn channel(cx: &mut Lowering) -> String {
    format!("channel_handle = #stablehlo.channel_handle<handle = {}, type = 1>", cx.channel())
}

/// Formats groups as an attribute: `replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>`.
pub(crate) fn groups_text(attr: &str, groups: &[Vec<usize>]) -> String {
    // Rows must have equal length, so shorter groups are padded with -1.
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
