//! Results for people, as tables ([`table`], [`soak`]) and pages ([`html`] with [`plot`]), and for
//! programs ([`json`]). [`figures`] and [`grid`] are what these are made from.

mod figures;
mod grid;
pub(crate) mod html;
pub(crate) mod json;
mod plot;
pub(crate) mod soak;
pub(crate) mod table;

pub(crate) use grid::Grid;
