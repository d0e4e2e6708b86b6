//! Reuse of lowered text. If an equal program was compiled for other devices of the platform, its text is used again, so that a
//! function is lowered only once for all devices.

use std::sync::Arc;

use super::execute::LoadedProgram;
use super::load::{Request, all_alive};
use super::placement::Place;
use crate::core::program::Program;
use crate::sharding::Sharding;

/// The maximum length of a text that is kept. Longer programs take so long to compile that lowering them again hardly counts.
const MAX_KEPT_TEXT: usize = 1 << 20;

impl Request {
    /// Returns the text to keep with the compiled program. The text of a program with host functions is not kept, because it
    /// contains their numbers.
    pub(super) fn kept_text(&self, text: String) -> Option<Arc<str>> {
        (text.len() <= MAX_KEPT_TEXT && self.retained().is_empty()).then(|| text.into())
    }

    /// Returns the text of an equal program on other devices, if such a program is loaded.
    pub(super) fn text_of_other_devices(&self) -> Option<Arc<str>> {
        if self.names_devices() {
            return None;
        }
        all_alive().iter().find_map(|loaded| self.text_of(loaded))
    }

    /// Returns the text of a loaded program if it is equal to this one except for its devices.
    fn text_of(&self, loaded: &LoadedProgram) -> Option<Arc<str>> {
        let (other, text) = (loaded.request.as_ref()?, loaded.text.as_ref()?);
        // Programs are compared last, because they are long.
        let is_similar = (&self.name, &self.donated) == (&other.name, &other.donated)
            && self.program.eqns.len() == other.program.eqns.len()
            && self.place.platform() == other.place.platform()
            && has_same_lines(&self.program, &other.program);
        (is_similar && self.on_devices_of(&other.place)? == *other).then(|| text.clone())
    }

    /// Returns this request for the devices of another place, or `None` if that place has other axes.
    fn on_devices_of(&self, place: &Place) -> Option<Request> {
        let mesh = match (&self.place, place) {
            (Place::Single(_), Place::Single(_)) => None,
            (Place::Mesh(have), Place::Mesh(want)) if have.abstract_mesh() == want.abstract_mesh() => Some(want),
            _ => return None,
        };
        let on_other_devices = |sharding: &Sharding| match (mesh, sharding) {
            (Some(mesh), Sharding::Named(named)) => named.on_devices_of(mesh).into(),
            (_, sharding) => place.replicated().in_memory(sharding.kind()).in_layout(sharding.layout()),
        };
        let out_shardings = self.out_shardings.iter().map(|out| match (mesh, out) {
            (Some(mesh), Some(named)) => Some(named.on_devices_of(mesh)),
            (_, out) => out.clone(),
        });
        Some(Request {
            place: place.clone(),
            in_shardings: self.in_shardings.iter().map(on_other_devices).collect(),
            out_shardings: out_shardings.collect(),
            ..self.clone()
        })
    }

    /// Returns `true` if an equation names devices.
    fn names_devices(&self) -> bool {
        let mut named = false;
        self.program.for_each_distinct_eqn(&mut |eqn| {
            named |= eqn.primitive.placed_on().is_some() || eqn.primitive.placed_by_default().is_some();
        });
        named
    }
}

/// Returns `true` if the equations of both programs are from the same source lines. Texts contain these lines, so a text must
/// not be used for a program from other lines.
fn has_same_lines(a: &Program, b: &Program) -> bool {
    a.eqns.iter().zip(&b.eqns).all(|(a, b)| std::ptr::eq(a.source, b.source))
}
