"""Writing a package: a trained model in one file, with its model card. `towernmt.checkpoint.packaged` reads it."""
