"""Recurrent models: seq2seq (Luong et al. 2015) and RNNSearch (Bahdanau et al. 2015), and recurrence itself."""
