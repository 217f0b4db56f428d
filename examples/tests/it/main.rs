//! The tests of `pleach-examples`, linked once.

mod evm_states_agree;
mod examples_run;
mod in_memory;
mod old_blocks_are_as_they_were;
