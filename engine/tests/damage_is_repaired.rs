//! Damage at rest is named exactly by a scrub, beside commits, and repaired, or what is lost is named. The simulated disk
//! damages each page in turn and cuts the power at each step of a repair.

#[path = "damage_is_repaired/backup.rs"]
mod backup;
#[path = "damage_is_repaired/common.rs"]
mod common;
#[path = "damage_is_repaired/repair.rs"]
mod repair;
#[path = "damage_is_repaired/scrub.rs"]
mod scrub;
