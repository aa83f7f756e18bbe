"""A page that translates in the browser: Bergamot's wasm, an 8-bit model, and what makes a site of them."""
