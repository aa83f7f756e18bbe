"""From text to prepared data: what `towernmt prepare` does."""
