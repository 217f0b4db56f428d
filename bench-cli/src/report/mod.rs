//! Results for people ([`table`], [`html`]) and for programs ([`json`]).

mod figures;
mod grid;
pub(crate) mod html;
pub(crate) mod json;
mod plot;
pub(crate) mod soak;
pub(crate) mod table;

pub(crate) use grid::Grid;
