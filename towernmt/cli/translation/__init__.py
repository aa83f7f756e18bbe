"""Commands that use a trained model: translate, score, evaluate."""
