"""The scripts that make shells ask for completions; `answer` says what they are told."""

from __future__ import annotations

from collections.abc import Mapping

_BASH = r"""_jaxresid_completion() {
    local kind= line
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ -n $kind ]]; then COMPREPLY+=("$line"); else kind=$line; fi
    done < <(_JAXRESID_COMPLETE=bash _JAXRESID_BREAKS=$COMP_WORDBREAKS \
        "$1" "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    case $kind in
        files) compopt -o default -o bashdefault ;;
        folders) compopt -o dirnames ;;
        begun) compopt -o nospace ;;
    esac
}
complete -F _jaxresid_completion jaxresid
"""

_ZSH = r"""#compdef jaxresid

_jaxresid() {
    local -a lines values shown
    local kind line value what
    lines=("${(@f)$(_JAXRESID_COMPLETE=zsh "${(Q)words[1]}" \
        "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    kind=${lines[1]}
    case $kind in
        files|folders)
            [[ $PREFIX == --*=* ]] && compset -P '*='
            if [[ $kind == files ]]; then _files; else _files -/; fi
            return ;;
    esac
    for line in "${(@)lines[2,-1]}"; do
        value=${line%%$'\t'*} what=${line#*$'\t'}
        values+=("$value")
        shown+=("$value${what:+  -- $what}")
    done
    if [[ $kind == begun ]]; then
        compadd -S '' -d values -a values
    else
        compadd -l -d shown -a values
    fi
}

(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then
    _jaxresid "$@"
else
    compdef _jaxresid jaxresid
fi
"""

_FISH = r"""function __jaxresid_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program $words[1]
    set -e words[1]
    set -l lines (env _JAXRESID_COMPLETE=fish $program $words "$current" 2>/dev/null)
    set -l kind $lines[1]
    set -e lines[1]
    set -l option (string match -r -- '^--[^=]*=' "$current")
    set -l path (string replace -r -- '^--[^=]*=' '' "$current")
    switch "$kind"
        case files
            for found in (__fish_complete_path "$path")
                echo -- "$option$found"
            end
        case folders
            for found in (__fish_complete_directories "$path")
                echo -- "$option$found"
            end
        case '*'
            printf '%s\n' $lines
    end
end

complete -c jaxresid -f -a '(__jaxresid_complete)'
"""

SCRIPTS: Mapping[str, str] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
