"""Options and commands of other translation toolkits, and their names in towernmt.

`Parser.refuse_unknown` prints the advice of this table for an option that a command does not have. Options are listed
without their leading hyphens, and with `-` for `_`: one entry covers `-batch_size` and `--batch-size`.
"""

from __future__ import annotations

from collections.abc import Mapping

_PREPARE = "run `towernmt prepare --source FILE --target FILE --output DIR` first, and pass --data DIR"
_VALIDATION = "pass it to `towernmt prepare --valid-source FILE --valid-target FILE`"
_VOCABULARY = "pass it to `towernmt prepare`, as --vocab-size N, --shared-vocab or --vocab-kind NAME"
_OWN_VOCABULARY = "leave it out: the run contains its vocabularies"
_PLAIN_TEXT = "leave it out: the text is plain, and the run's vocabulary segments it"
_GPU = "write --gpu N, or --cpu"
_RESUME = "leave it out: a run that --logdir already holds is resumed"

_TRAIN = {
    "s source src t target tgt trg source-file target-file train-source train-target train-src train-tgt trainpref "
    "train-sets train-features-file train-labels-file input": _PREPARE,
    "source-lang target-lang src-lang tgt-lang": "leave it out: `towernmt prepare` takes one file for each language",
    "lang-pairs langs encoder-langtok decoder-langtok lang-tok-style src-prefix":
        "write a corpora.yaml with a source and a tag for each direction, prepare it, and pass --data DIR",
    "vs vt validation-source validation-target valid-source valid-target valid-src valid-tgt valid-sets validpref "
    "validation references reference r dev-source dev-target": _VALIDATION,
    "d prepared-data train-data data-dir dataset databin": "write --data DATA (GPUs are named by --gpu N,N)",
    "o output output-dir m model-dir model-path save-dir save-model run-dir work-dir": "write --logdir RUN",
    "vocabs vocab v vocabulary-path src-vocab tgt-vocab": "write --vocabulary PATH for text that is not prepared; "
                                                          "prepared data contains its vocabularies",
    "shared-vocab joined-dictionary share-vocab vocab-size num-words dim-vocabs source-vocab target-vocab bpe "
    "sentencepiece-options word-min-count nwordssrc nwordstgt": _VOCABULARY,
    "arch a architecture type model-type encoder-type decoder-type encoder decoder task":
        "write --model transformer (see --model in the help), and --preset for its size",
    "user-dir": "write --model FILE.py:CLASS for a custom model or loss",
    "criterion": "leave it out: the loss is cross-entropy with --set model.label_smoothing=X; write --model "
                 "FILE.py:CLASS for a custom loss",
    "c config-file auto-config hparams parameters hp": "write --config FILE, or --set KEY=VALUE",
    "device devices device-id device-ids device-list gpus gpu-id gpu-ids gpu-ranks num-gpus world-size use-gpu":
        "write --gpu 0,1 for GPUs, or --towers N for the CPU",
    "use-cpu cpu cpu-threads no-cuda cuda": "write --towers N to train on the CPU, or --gpu N to train on a GPU",
    "distributed horovod distributed-world-size nnodes num-workers dist": "write --workers N",
    "overwrite overwrite-output resume continue train-from restore-file no-restore": _RESUME,
    "params init pretrained-model finetune-from-model load-model": "write --start MODEL",
    "workspace w": "leave it out: --set data.batch_tokens=N bounds the memory that a batch needs",
    "batch-size b max-tokens mini-batch mini-batch-words mini-batch-fit max-sentences batch-tokens":
        "write --set data.batch_tokens=N",
    "batch-type normalization": "write --set data.batch_type=NAME",
    "max-length max-seq-len max-source-positions max-target-positions src-seq-length max-sentence-length "
    "maximum-features-length": "write --set data.max_length=N",
    "bucket-width": "write --set data.bucket_width=N",
    "no-bucketing": "write --set data.bucket_width=0",
    "update-freq update-interval update-cycle optimizer-delay accum-count accumulate effective-batch-size "
    "gradient-accumulation": "write --set train.update_cycle=N",
    "max-update max-updates train-steps max-steps max-step after-batches steps": "write --set train.steps=N",
    "max-epoch max-epochs max-num-epochs epochs epoch after-epochs after min-num-epochs": "write --set train.epochs=N",
    "max-seconds minutes max-minutes stop-time-hours": "write --set train.minutes=N",
    "learning-rate learn-rate lr initial-learning-rate": "write --set optimizer.learning_rate=X",
    "warmup warmup-updates warmup-steps lr-warmup learning-rate-warmup": "write --set schedule.warmup_steps=N",
    "lr-scheduler learning-rate-scheduler-type decay-method scheduling lr-decay-strategy lr-decay":
        "write --set schedule.name=NAME",
    "optimizer optim": "write --set optimizer.name=NAME",
    "optimizer-params adam-betas optimizer-betas": "write --set optimizer.beta1=X optimizer.beta2=X",
    "clip-norm max-grad-norm gradient-clipping-threshold clip-gradient": "write --set train.clip_norm=X",
    "weight-decay": "write --set optimizer.weight_decay=X",
    "exponential-smoothing ema-decay ema moving-average-decay": "write --set optimizer.ema_decay=X",
    "label-smoothing": "write --set model.label_smoothing=X",
    "dropout transformer-dropout embed-dropout transformer-dropout-prepost": "write --set model.residual_dropout=X",
    "attention-dropout transformer-dropout-attention": "write --set model.attention_dropout=X",
    "num-layers layers encoder-layers enc-layers enc-depth": "write --set model.encoder_layers=N",
    "decoder-layers dec-layers dec-depth": "write --set model.decoder_layers=N",
    "hidden-size rnn-size dim-emb dim-rnn num-embed transformer-model-size encoder-embed-dim decoder-embed-dim "
    "word-vec-size num-units": "write --set model.hidden_size=N",
    "heads num-heads transformer-heads transformer-attention-heads encoder-attention-heads":
        "write --set model.heads=N",
    "transformer-preprocess": "write --set model.preprocess=STEPS",
    "transformer-postprocess": "write --set model.postprocess=STEPS",
    "transformer-ff transformer-dim-ffn transformer-feed-forward-num-hidden encoder-ffn-embed-dim ffn-inner-dim":
        "write --set model.filter_size=N",
    "tied-embeddings tied-embeddings-all share-all-embeddings share-decoder-embeddings weight-tying-type "
    "share-embeddings share-decoder-input-output-embed": "write --set model.tie_embeddings=NAME",
    "checkpoint-interval save-freq save-interval save-interval-updates save-checkpoint-steps":
        "write --set checkpoint.steps=N",
    "keep-last-params keep-last-epochs keep-checkpoint keep-checkpoint-max keep-checkpoints":
        "write --set checkpoint.keep=N",
    "valid-freq valid-steps validate-interval validate-interval-updates eval-steps": "write --set validation.steps=N",
    "optimized-metric valid-metrics best-checkpoint-metric early-stopping-metric metric":
        "write --set validation.metric=NAME",
    "early-stopping patience max-num-checkpoint-not-improved early-stopping-patience":
        "write --set train.stop_patience=N",
    "seed random-seed": "write --set data.seed=N",
    "fp16 bf16 amp apex-amp precision mixed-precision dtype": "write --set train.precision=NAME",
    "disp-freq log-interval report-every logging-freq": "write --set log.steps=N"}

_PREPARE_COMMAND = {
    "s src source-file train-src train-source": "write --source FILE",
    "t tgt trg target-file train-tgt train-target": "write --target FILE",
    "trainpref train-sets train-data corpus input": "write --source FILE --target FILE",
    "validpref valid-sets vs vt validation-source validation-target valid-src valid-tgt dev":
        "write --valid-source FILE --valid-target FILE",
    "o destdir output-dir save-data data-dir": "write --output DIR",
    "v vocab vocabs srcdict tgtdict src-vocab tgt-vocab": "write --source-vocab FILE --target-vocab FILE",
    "joined-dictionary share-vocab shared": "write --shared-vocab",
    "num-words nwordssrc nwordstgt dim-vocabs size": "write --vocab-size N",
    "bpe vocab-type model-type tokenizer": "write --vocab-kind NAME",
    "max-seq-len max-sentence-length src-seq-length": "write --max-length N",
    "num-samples-per-shard shard-size": "write --shard-pairs N",
    "bucket-width no-bucketing": "leave it out: the buckets are those of `towernmt train --set data.bucket_width=N`",
    "max-processes threads num-threads processes": "write --workers N"}

_MODELS = {
    "m models model-path path model-dir checkpoint-dir run-dir": "write --model RUN (of an ensemble: --model RUN RUN)",
    "c checkpoints checkpoint-path ckpt checkpoint-name": "write --checkpoint NAME",
    "v vocab vocabs vocabulary source-vocab target-vocab dict": _OWN_VOCABULARY,
    "config auto-config hparams": "leave it out: the run contains its settings",
    "weights": "write --ensemble-weights W,W",
    "ensemble-mode": "write --ensemble-mean NAME",
    "d device devices device-id device-ids device-list gpus gpu-id num-gpus": _GPU,
    "use-cpu no-cuda": "write --cpu",
    "fp16 half dtype int8 quantize": "write --precision NAME",
    "mini-batch-words max-batch-tokens": "write --batch-tokens N"}

_SEARCH = {
    "b beam-size beam-width": "write --beam N",
    "batch-size mini-batch max-sentences max-batch-size": "write --batch-sentences N",
    "cpu-threads num-threads": "write --threads N",
    "n normalize alpha lenpen length-penalty-alpha beam-alpha decode-alpha len-pen brevity-penalty-type":
        "write --length-normalization NAME --length-penalty X",
    "max-output-length max-len-a max-len-b decode-length max-length-a max-length-factor max-decoding-length":
        "write --max-length FACTOR,CONSTANT",
    "min-len minimum-decoding-length": "write --min-length N",
    "sampling random-sampling": "write --sample",
    "sampling-topk random-sampling-topk output-sampling": "write --sample --top-k N",
    "sampling-topp random-sampling-topp": "write --sample --top-p X",
    "sampling-temperature random-sampling-temp sampling-temp softmax-temperature": "write --temperature X",
    "no-repeat-ngram-size block-ngram-repeat": "write --no-repeat-ngram N",
    "diverse-beam-groups": "write --beam-groups N",
    "diverse-beam-strength": "write --diversity X",
    "restrict-lexicon vocab-selection": "write --shortlist FILE",
    "remove-bpe post-process tokenizer detokenize tok sentencepiece scoring": _PLAIN_TEXT,
    "word-penalty": "write --word-reward X"}

_TRANSLATE = {**_MODELS, **_SEARCH, "replace-unk unk-replace": "write --replace-unknown",
    "i s src source source-file features-file input-file infile text": "write --input FILE",
    "o output-file predictions-file results-path out outfile hypothesis": "write --output FILE",
    "nbest nbest-size num-hypotheses": "write --n-best N",
    "alignment print-alignment with-alignments report-align": "write --alignments FILE",
    "print-scores with-scores output-scores score": "write --scores",
    "word-scores token-level-scores": "write --json --token-scores",
    "json-input output-type": "write --json, --scores or --n-best N",
    "buffer-size maxi-batch chunk-size": "write --window LINES",
    "prefix-size prefix-file target-prefix": "write --prefix FILE",
    "dictionary": "write --terminology FILE",
    "src-prefix lang-pairs encoder-langtok target-lang tgt-lang": "write --source-prefix TAG for a model of several "
                                                                  "languages; other models have one direction",
    "t tgt target ref reference references r": "translate without it, or run `towernmt evaluate --source FILE "
                                               "--reference FILE`"}

_EVALUATE = {**_MODELS, **_SEARCH, "replace-unk unk-replace": "write --replace-unknown",
    "s src input source-file features-file": "write --source FILE",
    "r ref refs references t tgt target labels-file predictions-reference": "write --reference FILE",
    "i hyp hyps hypotheses predictions-file translations sys": "write --hypothesis-file FILE",
    "o output": "write --hypothesis FILE",
    "systems": "write --system NAME=RUN_OR_FILE for each system",
    "l language-pair tgt-lang": "write --target-language CODE",
    "lc": "write --lowercase",
    "scorer": "write --metrics NAME",
    "paired-bs paired-ar confidence": "write --system for each system: systems are compared with significance tests",
    "paired-bs-n": "write --bootstrap-samples N",
    "test-set": "write --source FILE --reference FILE",
    "tok": "write --tokenize NAME"}

_SCORE = {**_MODELS,
    "s src input features-file": "write --source FILE",
    "t tgt reference references ref hypotheses predictions-file hypothesis": "write --target FILE",
    "o": "write --output FILE",
    "batch-size mini-batch": "write --batch-tokens N",
    "score-type summary": "write --mean, or leave it out for sums",
    "word-scores": "write --tokens"}

_AVERAGE = {
    "i inputs m model-dir path checkpoint-dir": "write --model RUN",
    "o output-dir": "write --output DIRECTORY",
    "n num-epoch-checkpoints num-update-checkpoints max-count num-last-checkpoints": "write --last K",
    "strategy metric": "write --best K, or --last K"}

_EXPORT = {
    "m model-dir model-path path": "write --model RUN",
    "o output-dir export-dir": "write --output DIRECTORY",
    "type export-type format-name export-format": "write --format FORMAT",
    "quantization quantize fp16 int8 gemm-type": "write --precision P",
    "beam-size": "write --beam N",
    "src-lang": "write --source-language CODE", "tgt-lang": "write --target-language CODE"}

_SERVE = {**_SEARCH,
    "m models model-dir path model-path": "write --model RUN (of several: --model de-en=RUN fr-en=RUN)",
    "p": "write --port N", "bind ip address": "write --host NAME",
    "d device devices gpus": _GPU, "use-cpu": "write --cpu",
    "api-keys": "write --keys FILE"}

_IMPORT = {
    "m model model-dir model-path path checkpoint": "write the path of the model without an option",
    "o output-dir": "write --output DIRECTORY", "v vocab vocabs": "write --vocabularies SOURCE TARGET",
    "type framework": "write --from SYSTEM"}

_TABLES: Mapping[str, Mapping[str, str]] = {
    "train": _TRAIN, "prepare": _PREPARE_COMMAND, "translate": _TRANSLATE, "evaluate": _EVALUATE, "score": _SCORE,
    "average": _AVERAGE, "export": _EXPORT, "serve": _SERVE,
    "import": _IMPORT}


_WORDS_WITHOUT_OPTION = {
    "train": "write --data DATA for the data, and --logdir RUN for the run",
    "prepare": "write --source FILE --target FILE for the text",
    "translate": "write --input FILE for the text, and --model RUN for the model",
    "evaluate": "write --model RUN, --source FILE and --reference FILE",
    "score": "write --model RUN, --source FILE and --target FILE",
    "align": "write --model RUN, --source FILE and --target FILE",
    "rerank": "write --input FILE for the n-best lists",
    "average": "write --model RUN", "export": "write --model RUN", "package": "write --model RUN",
    "grow": "write --model RUN", "serve": "write --model RUN", "tune": "write --data DATA"}

COMMANDS_OF_OTHER_TOOLKITS = {name: command for names, command in {
    "generate interactive infer inference decode predict translator": "translate",
    "preprocess prepare-data build-vocab vocab create-vocab spm-train learn-bpe binarize": "prepare",
    "test eval eval-lm bleu sacrebleu scorer-bleu": "evaluate",
    "scorer ppl rescore": "score", "convert": "export or import", "server rest-server rest_server api": "serve",
    "average-checkpoints average_checkpoints avg checkpoint-average": "average", "fit train-and-eval": "train",
    "plot-curves tensorboard": "plot", "pack bundle": "package"}.items() for name in names.split()}
"""Commands of towernmt by the names that other toolkits have for them."""


def advice_on_word(command: str, word: str) -> str:
    """Return an error message for a word on the command line that does not belong to an option."""
    text = _WORDS_WITHOUT_OPTION.get(command)
    return f"'{word}' belongs to no option{f'; {text}' if text else ''}"


def advice(command: str) -> dict[str, str]:
    """Return replacements for options of other toolkits.

    Args:
        command: a command of towernmt.

    Returns:
        Advice by option name, without leading hyphens and with `-` for `_`.
    """
    return {option: text for options, text in _TABLES.get(command, {}).items() for option in options.split()}
