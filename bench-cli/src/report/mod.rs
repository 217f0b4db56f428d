//! Results for people, as tables ([`table`], [`soak`]) and pages ([`html`] with [`plot`]; [`sections`] of
//! other results; [`comparison`] of all), and for programs ([`json`]). [`figures`], [`claims`], [`over_time`],
//! [`about`] and [`grid`] are what these are made from; [`published`] has the figures of the papers.

pub(crate) mod about;
mod claims;
pub(crate) mod comparison;
mod figures;
mod grid;
pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod makespan;
mod over_time;
mod plot;
mod published;
pub(crate) mod sections;
pub(crate) mod soak;
pub(crate) mod table;

pub(crate) use grid::Grid;
